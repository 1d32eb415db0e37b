package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/margolite/margolite/runtime/network"
)

// OwnerKey is the label that marks the containers of this runtime; its value is
// the project. Containers without it are never touched.
const OwnerKey = "margolite/project"

// The labels of ours. They alone are read back.
const (
	keyService    = "margolite/service"
	keyNumber     = "margolite/number"
	keyHash       = "margolite/config-hash"
	keyImage      = "margolite/image"
	keyRestart    = "margolite/restart"
	keyStopSignal = "margolite/stop-signal"
	keyStopGrace  = "margolite/stop-grace"
	keyHostname   = "margolite/hostname"
	keyNames      = "margolite/names"
	keyNetwork    = "margolite/network"
	keyAddress    = "margolite/address"
	keyPorts      = "margolite/ports"
	keyVolumes    = "margolite/volumes"
	keyDependsOn  = "margolite/depends-on"
	keyHostDirs   = "margolite/host-dirs"
	keyRoot       = "margolite/rootfs"
	keyExited     = "margolite/exited"
	keyStopping   = "margolite/stopping"
	keyCaller     = "margolite/caller-labels" // names of the labels that came with the project
)

// The labels that other tools read.
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
	nerdctlNetworks = "nerdctl/networks"
	nerdctlPorts    = "nerdctl/ports"
	nerdctlPlatform = "nerdctl/platform"
	nerdctlStateDir = "nerdctl/state-dir"
)

// reserved are the prefixes that neither a Compose file nor a caller may use,
// because a program acts on them.
var reserved = []string{"margolite/", "nerdctl/", "com.docker.compose.", "containerd.io/", "io.containerd."}

const (
	maxLabel = 4096 // containerd's limit for key and value of one label
	maxName  = 128  // of a project, service or volume: they become file names
)

// Labels are everything that is known about a container after its creation.
type Labels struct {
	Project    string
	Service    string
	Number     int    // of the replica, from 1
	Hash       string // of the configuration
	Image      string // reference as the Compose file spells it
	Restart    Restart
	StopSignal string // as SIGTERM
	StopGrace  time.Duration
	Hostname   string
	Names      []string // further names that the replica has on the network
	Network    network.Network
	Address    netip.Addr
	Ports      []network.Port
	Volumes    []string          // named volumes that it mounts
	HostDirs   []string          // directories of the device that are made where missing, before it starts
	Root       string            // chain id of the image's root file system
	DependsOn  []string          // services to be started before it
	Exited     bool              // a one-shot service that ended with 0: not to be started again
	Stopping   bool              // somebody stops it: however it ends, that is not by itself
	Caller     map[string]string // of whoever asked for the project
}

// Shown is what only other tools want to know.
type Shown struct {
	Namespace  string
	LogURI     string
	StateDir   string
	WorkingDir string            // of the project
	Platform   string            // as linux/arm64
	Service    map[string]string // labels in the Compose file
}

// Encode writes the labels of a container record.
func (l Labels) Encode(s Shown) (map[string]string, error) {
	for _, given := range []map[string]string{s.Service, l.Caller} {
		for key := range given {
			if i := slices.IndexFunc(reserved, func(p string) bool { return strings.HasPrefix(key, p) }); i >= 0 {
				return nil, fmt.Errorf("label %q: names that start with %s are reserved", key, reserved[i])
			}
		}
	}
	net, err := json.Marshal(l.Network)
	if err != nil {
		return nil, fmt.Errorf("cannot encode network: %w", err)
	}

	var dirs []byte
	if len(l.HostDirs) > 0 {
		if dirs, err = json.Marshal(l.HostDirs); err != nil {
			return nil, fmt.Errorf("cannot encode directories: %w", err)
		}
	}

	out := maps.Clone(s.Service)
	if out == nil {
		out = make(map[string]string, 32)
	}
	maps.Copy(out, l.Caller)
	set := func(key, value string) {
		if value != "" {
			out[key] = value
		}
	}
	number := strconv.Itoa(l.Number)

	set(OwnerKey, l.Project)
	set(keyService, l.Service)
	set(keyNumber, number)
	set(keyHash, l.Hash)
	set(keyImage, l.Image)
	set(keyRestart, l.Restart.String())
	set(keyStopSignal, l.StopSignal)
	set(keyStopGrace, l.StopGrace.String())
	set(keyHostname, l.Hostname)
	set(keyNames, strings.Join(l.Names, ","))
	set(keyNetwork, string(net))
	if l.Address.IsValid() {
		set(keyAddress, l.Address.String())
	}
	set(keyPorts, encodePorts(l.Ports))
	set(keyVolumes, strings.Join(l.Volumes, ","))
	set(keyDependsOn, strings.Join(l.DependsOn, ","))
	set(keyHostDirs, string(dirs))
	set(keyRoot, l.Root)
	set(keyCaller, strings.Join(slices.Sorted(maps.Keys(l.Caller)), ","))
	if l.Exited {
		set(keyExited, "0")
	}

	set(composeProject, l.Project)
	set(composeService, l.Service)
	set(composeNumber, number)
	set(composeHash, l.Hash)
	set(composeImage, l.Image)
	set(composeOneoff, "False")
	set(composeWorkDir, s.WorkingDir)
	set(nerdctlName, l.Project+"-"+l.Service+"-"+number)
	set(nerdctlSpace, s.Namespace)
	set(nerdctlHostname, l.Hostname)
	set(nerdctlLogURI, s.LogURI)
	set(nerdctlNetworks, `["`+l.Project+"_"+l.Network.Name+`"]`)
	set(nerdctlPlatform, s.Platform)
	set(nerdctlStateDir, s.StateDir)
	if ports, err := nerdctlPortMappings(l.Ports); err != nil {
		return nil, err
	} else if len(nerdctlPorts)+len(ports) <= maxLabel { // only shown: not worth a refusal
		set(nerdctlPorts, ports)
	}

	for key, value := range out {
		if len(key)+len(value) > maxLabel {
			return nil, fmt.Errorf("label %.40q takes %d bytes, containerd allows %d", key, len(key)+len(value), maxLabel)
		}
	}
	return out, nil
}

// ErrForeign says that a container is not of this runtime.
var ErrForeign = errors.New("container is not of this runtime")

// Decode reads the labels of a container record: ErrForeign when it is not
// ours, another error when it is and cannot be understood. Names are checked,
// because they become file names.
func Decode(m map[string]string) (Labels, error) {
	l := Labels{
		Project:    m[OwnerKey],
		Service:    m[keyService],
		Hash:       m[keyHash],
		Image:      m[keyImage],
		StopSignal: m[keyStopSignal],
		Hostname:   m[keyHostname],
		Names:      splitList(m[keyNames]),
		Volumes:    splitList(m[keyVolumes]),
		DependsOn:  splitList(m[keyDependsOn]),
		Root:       m[keyRoot],
		Exited:     m[keyExited] == "0",
		Stopping:   m[keyStopping] != "",
	}
	if l.Project == "" {
		return Labels{}, ErrForeign
	}
	for _, name := range slices.Concat([]string{l.Project, l.Service}, l.Volumes, l.DependsOn) {
		if !ValidName(name) {
			return Labels{}, fmt.Errorf("cannot read labels: %.40q is no valid name", name)
		}
	}
	if l.Hash == "" {
		return Labels{}, fmt.Errorf("cannot read label %s: it is not there", keyHash)
	}

	var err error
	if l.Number, err = strconv.Atoi(m[keyNumber]); err != nil || l.Number < 1 {
		return Labels{}, fmt.Errorf("cannot read label %s: %.40q is no replica number", keyNumber, m[keyNumber])
	}
	if l.Restart, err = ParseRestart(m[keyRestart]); err != nil {
		return Labels{}, fmt.Errorf("cannot read label %s: %w", keyRestart, err)
	}
	if l.StopGrace, err = time.ParseDuration(m[keyStopGrace]); err != nil || l.StopGrace < 0 {
		return Labels{}, fmt.Errorf("cannot read label %s: %.40q is no duration", keyStopGrace, m[keyStopGrace])
	}
	if err := json.Unmarshal([]byte(m[keyNetwork]), &l.Network); err != nil {
		return Labels{}, fmt.Errorf("cannot read label %s: %w", keyNetwork, err)
	}
	if l.Address, err = netip.ParseAddr(m[keyAddress]); err != nil {
		return Labels{}, fmt.Errorf("cannot read label %s: %w", keyAddress, err)
	}
	if l.Ports, err = decodePorts(m[keyPorts], l.Address); err != nil {
		return Labels{}, fmt.Errorf("cannot read label %s: %w", keyPorts, err)
	}
	if dirs := m[keyHostDirs]; dirs != "" {
		if err := json.Unmarshal([]byte(dirs), &l.HostDirs); err != nil {
			return Labels{}, fmt.Errorf("cannot read label %s: %w", keyHostDirs, err)
		}
	}
	for _, key := range splitList(m[keyCaller]) {
		if value, ok := m[key]; ok {
			if l.Caller == nil {
				l.Caller = make(map[string]string)
			}
			l.Caller[key] = value
		}
	}
	return l, nil
}

// ValidName tells whether s may name a project, service or volume: it becomes
// part of file names and must not lead anywhere else.
func ValidName(s string) bool {
	if s == "" || len(s) > maxName || !alphanumeric(s[0]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !alphanumeric(c) && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func splitList(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// encodePorts writes ports as 0.0.0.0:8080:80/tcp, separated by commas.
func encodePorts(ports []network.Port) string {
	list := make([]string, len(ports))
	for i, p := range ports {
		list[i] = fmt.Sprintf("%s:%d:%d/%s", hostIP(p), p.HostPort, p.ContainerPort, p.Protocol)
	}
	return strings.Join(list, ",")
}

func decodePorts(s string, address netip.Addr) ([]network.Port, error) {
	list := splitList(s)
	ports := make([]network.Port, 0, len(list))
	for _, text := range list {
		p := network.Port{Address: address}
		rest, protocol, ok := strings.Cut(text, "/")
		if !ok || protocol != "tcp" && protocol != "udp" {
			return nil, fmt.Errorf("%.60q has no protocol", text)
		}
		p.Protocol = protocol
		var numbers [2]string
		for i := 1; i >= 0; i-- { // from the right: an address may have colons
			at := strings.LastIndexByte(rest, ':')
			if at < 0 {
				return nil, fmt.Errorf("%.60q is no port", text)
			}
			rest, numbers[i] = rest[:at], rest[at+1:]
		}
		host, err := strconv.ParseUint(numbers[0], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%.60q is no port: %w", text, err)
		}
		inside, err := strconv.ParseUint(numbers[1], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%.60q is no port: %w", text, err)
		}
		if p.HostIP, err = netip.ParseAddr(rest); err != nil {
			return nil, fmt.Errorf("%.60q is no port: %w", text, err)
		}
		p.HostPort, p.ContainerPort = uint16(host), uint16(inside)
		ports = append(ports, p)
	}
	if len(ports) == 0 {
		return nil, nil
	}
	return ports, nil
}

func hostIP(p network.Port) netip.Addr {
	if p.HostIP.IsValid() {
		return p.HostIP
	}
	return netip.IPv4Unspecified()
}

// nerdctlPortMappings is the JSON that nerdctl shows in its PORTS column.
func nerdctlPortMappings(ports []network.Port) (string, error) {
	type mapping struct {
		HostPort      int32
		ContainerPort int32
		Protocol      string
		HostIP        string
	}
	if len(ports) == 0 {
		return "", nil
	}
	list := make([]mapping, len(ports))
	for i, p := range ports {
		list[i] = mapping{int32(p.HostPort), int32(p.ContainerPort), p.Protocol, hostIP(p).String()}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return "", fmt.Errorf("cannot encode ports: %w", err)
	}
	return string(text), nil
}
