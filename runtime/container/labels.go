package container

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/margolite/margolite/runtime/compose"
)

// OwnerKey is the label that marks the containers of this runtime; its value is
// the project. Containers without it are never touched.
const OwnerKey = "margolite/project"

// The labels of ours. They alone are read back.
const (
	keyService   = "margolite/service"
	keyNumber    = "margolite/number"
	keyHash      = "margolite/config-hash"
	keyImage     = "margolite/image"
	keyDependsOn = "margolite/depends-on"
	keyRoot      = "margolite/rootfs"
	keyOwner     = "margolite/state-dir" // of the margolite whose container it is, resolved
	keyExited    = "margolite/exited"
	keyStopping  = "margolite/stopping"
	keyCaller    = "margolite/caller-labels" // names of the labels that came with the project
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
	nerdctlLogging  = "nerdctl/log-config" // as from log.NerdctlConfig
	nerdctlNetworks = "nerdctl/networks"
	nerdctlPorts    = "nerdctl/ports"
	nerdctlPlatform = "nerdctl/platform"  // as linux/arm64
	nerdctlStateDir = "nerdctl/state-dir" // also an annotation
	nerdctlHealth   = "nerdctl/healthcheck"
	nerdctlTimeout  = "nerdctl/stop-timeout" // seconds
	imageStopSignal = "io.containerd.image.config.stop-signal"
)

const maxLabel = 4096 // containerd's limit for key and value of one label

// Labels are what a container is found by, and what changes during its life.
type Labels struct {
	Project   string
	Service   string
	Number    int    // of the replica, from 1
	Hash      string // of the configuration
	Image     string // reference as the Compose file spells it
	Root      string // chain id of the image's root file system
	DependsOn []compose.Dependency
	Exited    bool              // a one-shot service that ended with 0: not to be started again
	Stopping  bool              // somebody stops it: however it ends, that is not by itself
	Caller    map[string]string // of whoever asked for the project
	Details
}

// Encode writes the labels of a container record. service are those in the Compose
// file, and shown those that only other tools want to know, as far as they are not
// empty.
func (l Labels) Encode(service, shown map[string]string) (map[string]string, error) {
	out := make(map[string]string, 32)
	maps.Copy(out, service)
	maps.Copy(out, l.Caller)
	set := func(key, value string) {
		if value != "" {
			out[key] = value
		}
	}
	show := func(key, value string) { // what is only shown is not worth a refusal
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
		show(nerdctlHealth, encode(l.Healthcheck)) // nerdctl takes the names of keys in any case
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

// ErrForeign says that a container is not of this runtime.
var ErrForeign = errors.New("the container belongs to another runtime")

// ErrOtherOwner says that the containers of a namespace belong to a margolite with
// another state directory.
var ErrOtherOwner = errors.New("containers belong to another margolite")

// Decode reads the labels and the details of a container record: ErrForeign
// when it is not ours, another error when it is and cannot be understood. Names
// are checked, because they become file names.
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

// encode is the JSON of what always has one.
func encode(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}
