package container

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/network"
)

// OwnerKey marks the containers of this runtime, with the project; others are never touched.
const OwnerKey = "margolite/project"

// Our own labels; only these are read back.
const (
	keyService   = "margolite/service"
	keyNumber    = "margolite/number"
	keyHash      = "margolite/config-hash"
	keyImage     = "margolite/image"
	keyDependsOn = "margolite/depends-on"
	keyRoot      = "margolite/rootfs"
	keyOwner     = "margolite/state-dir" // of the margolite that owns it, resolved
	keyExited    = "margolite/exited"
	keyStopping  = "margolite/stopping"
	keyCaller    = "margolite/caller-labels" // names of the labels given with the project
)

// Labels that other tools read.
const (
	composeProject  = "com.docker.compose.project"
	composeService  = "com.docker.compose.service"
	composeNumber   = "com.docker.compose.container-number"
	composeHash     = "com.docker.compose.config-hash"
	composeImage    = "com.docker.compose.image"
	composeOneoff   = "com.docker.compose.oneoff"
	composeWorkDir  = "com.docker.compose.project.working_dir"
	nerdctlName     = "nerdctl/name"
	nerdctlSpace    = "nerdctl/namespace"
	nerdctlHostname = "nerdctl/hostname"
	nerdctlLogURI   = "nerdctl/log-uri"
	nerdctlLogging  = "nerdctl/log-config" // as from log.NerdctlConfig
	nerdctlNetworks = "nerdctl/networks"
	nerdctlPorts    = "nerdctl/ports"
	nerdctlPlatform = "nerdctl/platform"  // as linux/arm64
	nerdctlStateDir = "nerdctl/state-dir" // also an annotation
	nerdctlHealth   = "nerdctl/healthcheck"
	nerdctlTimeout  = "nerdctl/stop-timeout" // in seconds
	imageStopSignal = "io.containerd.image.config.stop-signal"
)

const maxLabel = 4096 // containerd's limit in bytes for key and value of one label

// Labels identify a container, and record what changes during its life.
type Labels struct {
	Project   string
	Service   string
	Number    int    // of the replica, from 1
	Hash      string // of the configuration
	Image     string // reference as the Compose file spells it
	Root      string // chain ID of the image's root file system
	DependsOn []compose.Dependency
	Exited    bool              // a one-shot service that ended with 0: not to be started again
	Stopping  bool              // it is being stopped: however it ends, not by itself
	Caller    map[string]string // given with the project by the caller
	Details
}

// Encode builds the labels of a container record. service are those in the Compose file, and
// shown those for other tools; empty ones of these are left out.
func (l Labels) Encode(service, shown map[string]string) (map[string]string, error) {
	out := make(map[string]string, 32)
	maps.Copy(out, service)
	maps.Copy(out, l.Caller)
	set := func(key, value string) {
		if value != "" {
			out[key] = value
		}
	}
	show := func(key, value string) { // labels that are only shown are not worth a refusal
		if len(key)+len(value) <= maxLabel {
			set(key, value)
		}
	}
	number := strconv.Itoa(l.Number)

	set(OwnerKey, l.Project)
	set(keyService, l.Service)
	set(keyNumber, number)
	set(keyHash, l.Hash)
	set(keyImage, l.Image)
	set(keyDependsOn, encodeDependencies(l.DependsOn))
	set(keyRoot, l.Root)
	set(keyCaller, strings.Join(slices.Sorted(maps.Keys(l.Caller)), ","))
	if l.Exited {
		set(keyExited, "0")
	}
	for key, value := range shown {
		set(key, value)
	}

	set(composeProject, l.Project)
	set(composeService, l.Service)
	set(composeNumber, number)
	set(composeHash, l.Hash)
	set(composeImage, l.Image)
	set(composeOneoff, "False")
	set(nerdctlName, cmp.Or(l.Name, l.Project+"-"+l.Service+"-"+number))
	set(nerdctlHostname, l.Sandbox.Hostname)
	show(nerdctlNetworks, nerdctlNetworkNames(l.Sandbox))
	if l.Healthcheck != nil {
		show(nerdctlHealth, encode(l.Healthcheck)) // nerdctl ignores the case of keys
	}
	set(imageStopSignal, l.StopSignal)
	set(nerdctlTimeout, strconv.FormatInt(int64((l.StopGrace+time.Second-1)/time.Second), 10))
	show(nerdctlPorts, nerdctlPortMappings(l.Ports))

	for key, value := range out {
		if len(key)+len(value) > maxLabel {
			return nil, fmt.Errorf("label %.40q has %d bytes; containerd allows %d", key, len(key)+len(value), maxLabel)
		}
	}
	return out, nil
}

// ErrForeign says that a container belongs to another runtime.
var ErrForeign = errors.New("the container belongs to another runtime")

// ErrOtherOwner says that a namespace belongs to a margolite with another state directory.
var ErrOtherOwner = errors.New("containers belong to another margolite")

// Decode reads the labels and details of a container record: ErrForeign if it is not ours,
// another error if it is and cannot be understood. It checks names, which become file names.
func Decode(m map[string]string, details []byte) (Labels, error) {
	l := Labels{
		Project:  m[OwnerKey],
		Service:  m[keyService],
		Hash:     m[keyHash],
		Image:    m[keyImage],
		Root:     m[keyRoot],
		Exited:   m[keyExited] == "0",
		Stopping: m[keyStopping] != "",
	}
	if l.Project == "" {
		return Labels{}, ErrForeign
	}
	if l.Hash == "" {
		return Labels{}, fmt.Errorf("cannot read label %s: it is missing", keyHash)
	}
	var err error
	if l.Number, err = strconv.Atoi(m[keyNumber]); err != nil || l.Number < 1 {
		return Labels{}, fmt.Errorf("cannot read label %s: %.40q is not a replica number", keyNumber, m[keyNumber])
	}
	if text := m[keyDependsOn]; text != "" {
		if err := json.Unmarshal([]byte(text), &l.DependsOn); err != nil {
			return Labels{}, fmt.Errorf("cannot read label %s: %w", keyDependsOn, err)
		}
	}
	if l.Details, err = decodeDetails(details); err != nil {
		return Labels{}, err
	}
	names := []string{l.Project, l.Service}
	for _, d := range l.DependsOn {
		names = append(names, d.Service)
	}
	for _, name := range names {
		if !compose.ValidName(name) {
			return Labels{}, fmt.Errorf("cannot read labels: %.40q is not a valid name", name)
		}
	}
	for key := range strings.SplitSeq(m[keyCaller], ",") {
		if value, ok := m[key]; ok {
			if l.Caller == nil {
				l.Caller = make(map[string]string)
			}
			l.Caller[key] = value
		}
	}
	return l, nil
}

func encodeDependencies(dependencies []compose.Dependency) string {
	if len(dependencies) == 0 {
		return ""
	}
	return encode(dependencies)
}

func encode(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}

// detailsKey is an extension of a container record: labels are limited to 4 KiB.
const detailsKey = "margolite/details"

// maxDetails is in bytes. Hundreds of ports and mounts take a tenth of it.
const maxDetails = 1 << 20

// Details never change, and suffice to start, watch and stop a container without its project.
type Details struct {
	Seat
	Restart     compose.Restart      `json:"restart"`
	StopSignal  string               `json:"stopSignal,omitempty"` // such as SIGTERM
	StopGrace   time.Duration        `json:"stopGrace"`
	Volumes     []Volume             `json:"volumes,omitempty"`
	Subpaths    []Subpath            `json:"subpaths,omitempty"` // parts of these volumes
	Sources     []Source             `json:"sources,omitempty"`  // paths of the device
	Files       []File               `json:"files,omitempty"`    // configs and secrets
	Healthcheck *compose.Healthcheck `json:"healthcheck,omitempty"`
	PostStart   []compose.Hook       `json:"postStart,omitempty"`
	PreStop     []compose.Hook       `json:"preStop,omitempty"`
	TTY         bool                 `json:"tty,omitempty"`
	StdinOpen   bool                 `json:"stdinOpen,omitempty"`
	Logging     compose.Logging      `json:"logging"`
	// SharedMemory is the size in bytes of a /dev/shm that others may join; 0: private.
	SharedMemory int64    `json:"sharedMemory,omitempty"`
	Devices      *Devices `json:"devices,omitempty"`
	CgroupParent string   `json:"cgroupParent,omitempty"` // "": below the project's
}

// Seat is where a container is among those of the device, and how others find it.
type Seat struct {
	Name    string          `json:"name,omitempty"`  // container_name; "": <project>-<service>-<number>
	Sandbox network.Sandbox `json:"sandbox"`         // its own, or that of the replica it joins
	Joins   []Join          `json:"joins,omitempty"` // other replicas' namespaces of other kinds
	Ports   []network.Port  `json:"ports,omitempty"`
}

// Volume is a volume that a container mounts.
type Volume struct {
	Name    string   `json:"name"`
	Project string   `json:"project,omitempty"` // owner; "": the container's project
	Type    string   `json:"type,omitempty"`    // file system type to mount; "": a directory of ours
	Device  string   `json:"device,omitempty"`
	Real    string   `json:"real,omitempty"` // where Device led when it was judged; "": Device is no path
	Options []string `json:"options,omitempty"`
}

// Subpath is a part of a volume. Only the start can tell where links in its way lead.
type Subpath struct {
	Volume int    `json:"volume"` // index in Volumes
	Path   string `json:"path"`
}

// File is a config or secret of a container. Its content lies in the state directory, which
// only root can enter, and gets owner and mode before the container starts.
type File struct {
	Name string `json:"name"` // in the container's directory of files
	UID  uint32 `json:"uid,omitempty"`
	GID  uint32 `json:"gid,omitempty"`
	Mode uint32 `json:"mode"`
}

func (d Details) encode() (*anypb.Any, error) {
	text, err := json.Marshal(d)
	if err == nil { // otherwise the record could not be read again, nor the container removed
		_, err = decodeDetails(text)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot encode details: %w", err)
	}
	return &anypb.Any{TypeUrl: detailsKey, Value: text}, nil
}

// decodeDetails reads the extension of a container record. It rejects invalid values: a
// newer version may have written them, and names become file names.
func decodeDetails(text []byte) (Details, error) {
	var d Details
	var err error
	switch {
	case len(text) == 0:
		err = errors.New("there are none")
	case len(text) > maxDetails:
		err = fmt.Errorf("they take %d bytes, more than %d", len(text), maxDetails)
	default:
		if err = json.Unmarshal(text, &d); err == nil {
			err = d.check()
		}
	}
	if err != nil {
		return Details{}, fmt.Errorf("cannot read details: %w", err)
	}
	return d, nil
}

func (d Details) check() error {
	switch d.Restart.Mode {
	case compose.RestartNo, compose.RestartOnFailure, compose.RestartAlways, compose.RestartUnlessStopped:
	default:
		return fmt.Errorf("%.40q is not a restart policy", d.Restart.Mode)
	}
	if _, err := compose.ParseSignal(d.StopSignal); err != nil {
		return fmt.Errorf("stop signal: %w", err)
	}
	if d.StopGrace < 0 || d.Restart.MaxRetries < 0 || d.SharedMemory < 0 {
		return errors.New("a time or number is negative")
	}
	for _, v := range d.Volumes {
		if err := v.check(); err != nil {
			return err
		}
	}
	for _, s := range d.Subpaths {
		if s.Volume < 0 || s.Volume >= len(d.Volumes) || s.Path == "" {
			return fmt.Errorf("%.80q is not a path within a volume", s.Path)
		}
	}
	for _, s := range d.Sources {
		if !filepath.IsAbs(s.Path) || !filepath.IsAbs(s.Real) {
			return fmt.Errorf("source %.80q is not an absolute path", s.Path)
		}
	}
	for _, f := range d.Files {
		if !compose.ValidName(f.Name) || f.Mode > 0o7777 {
			return fmt.Errorf("file %.80q has an invalid name or mode", f.Name)
		}
	}
	for _, j := range d.Joins {
		if !compose.ValidName(j.Service) || j.Number < 1 || j.Project != "" && !compose.ValidName(j.Project) {
			return fmt.Errorf("%.80q is not a service whose namespace can be joined", j.Service)
		}
	}
	for _, p := range d.Ports {
		if p.Protocol != "tcp" && p.Protocol != "udp" && p.Protocol != "sctp" {
			return fmt.Errorf("%.40q is not a port protocol", p.Protocol)
		}
	}
	if s := d.Sandbox; s.Project != "" || s.Service != "" {
		if !compose.ValidName(s.Project) || !compose.ValidName(s.Service) || s.Number < 1 {
			return fmt.Errorf("%.80q is not the sandbox of a replica", s.Service)
		}
	}
	return nil
}

func contentOf(a typeurl.Any) []byte {
	if a == nil {
		return nil
	}
	return a.GetValue()
}

// labelsOf also checks the specification: containerd's database has no checksums.
func labelsOf(r containers.Container) (Labels, error) {
	if !json.Valid(contentOf(r.Spec)) {
		return Labels{}, errors.New("cannot read specification")
	}
	return Decode(r.Labels, contentOf(r.Extensions[detailsKey]))
}

// nerdctl finds our logs and ports by the containers' labels and with --data-root RunDir/nerdctl,
// whose files are arranged by the socket of containerd.

// showNerdctl also records the start. The task must exist: then its shim has the log open.
func (p *paths) showNerdctl(id string, l Labels) error {
	dir := p.nerdctlDir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	driver := "json-file"
	if l.Logging.None {
		driver = "none"
	}
	files := map[string]string{
		"log-config.json": `{"driver":"` + driver + `"}`,
		"lifecycle.json":  encode(map[string]time.Time{"started_at": time.Now()}),
	}
	if len(l.Ports) > 0 {
		files["network-config.json"] = `{"portMappings":` + nerdctlPortMappings(l.Ports) + `}`
	}
	link := filepath.Join(dir, id+"-json.log")
	err := errors.Join(os.RemoveAll(link), os.Symlink(p.LogPath(id), link))
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return err
}

func nerdctlNetworkNames(s network.Sandbox) string {
	names := make([]string, 0, len(s.Attached)+1)
	for _, a := range s.Attached {
		names = append(names, a.Network.Name)
	}
	switch {
	case s.Host:
		names = append(names, "host")
	case len(names) == 0:
		names = append(names, "none")
	}
	return encode(names)
}

// nerdctlPortMappings is the JSON for nerdctl's PORTS column.
func nerdctlPortMappings(ports []network.Port) string {
	type mapping struct {
		HostPort      int32
		ContainerPort int32
		Protocol      string
		HostIP        string
	}
	if len(ports) == 0 {
		return ""
	}
	list := make([]mapping, len(ports))
	for i, p := range ports {
		list[i] = mapping{int32(p.HostPort), int32(p.ContainerPort), p.Protocol, cmp.Or(p.HostIP, netip.IPv4Unspecified()).String()}
	}
	return encode(list)
}
