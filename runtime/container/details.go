package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/network"
)

// detailsKey is the extension of a container record that holds the details. A
// label takes 4 KiB at most, an extension what a record may.
const detailsKey = "margolite/details"

// maxDetails bounds the details in bytes. A service with hundreds of ports and
// mounts takes a tenth of it.
const maxDetails = 1 << 20

// Details are what is known about a container after its creation beside its
// labels: all that it takes to start, watch and stop it without its Compose
// file. They never change.
type Details struct {
	Seat
	Restart     compose.Restart      `json:"restart"`
	StopSignal  string               `json:"stopSignal,omitempty"` // as SIGTERM
	StopGrace   time.Duration        `json:"stopGrace"`
	Volumes     []Volume             `json:"volumes,omitempty"`  // that it mounts
	Subpaths    []Subpath            `json:"subpaths,omitempty"` // parts of these volumes that it mounts
	Sources     []Source             `json:"sources,omitempty"`  // paths of the device that it mounts
	Files       []File               `json:"files,omitempty"`    // configs and secrets
	Healthcheck *compose.Healthcheck `json:"healthcheck,omitempty"`
	PostStart   []compose.Hook       `json:"postStart,omitempty"`
	PreStop     []compose.Hook       `json:"preStop,omitempty"`
	TTY         bool                 `json:"tty,omitempty"`
	StdinOpen   bool                 `json:"stdinOpen,omitempty"`
	Logging     compose.Logging      `json:"logging"`
	// SharedMemory is the size in bytes of a /dev/shm that others may join; 0:
	// it is the container's own.
	SharedMemory int64    `json:"sharedMemory,omitempty"`
	Devices      *Devices `json:"devices,omitempty"`
	CgroupParent string   `json:"cgroupParent,omitempty"` // empty: below the project's
}

// Seat is where a container is among those of the device, and how others find it.
type Seat struct {
	Name    string          `json:"name,omitempty"`  // container_name; empty: <project>-<service>-<number>
	Sandbox network.Sandbox `json:"sandbox"`         // that it is in; of another replica where it joins one
	Joins   []Join          `json:"joins,omitempty"` // namespaces of other kinds and replicas that it lives in
	Ports   []network.Port  `json:"ports,omitempty"`
}

// Volume is a volume that a container mounts.
type Volume struct {
	Name    string   `json:"name"`
	Project string   `json:"project,omitempty"` // whose it is; empty: the container's own
	Type    string   `json:"type,omitempty"`    // of a file system to be mounted; empty: a directory of ours
	Device  string   `json:"device,omitempty"`
	Real    string   `json:"real,omitempty"` // where Device led when that was judged; empty: it is no path
	Options []string `json:"options,omitempty"`
}

// Subpath is a file or directory in a volume that is mounted by itself. Nobody
// knows before the start where a link leads that is in its way.
type Subpath struct {
	Volume int    `json:"volume"` // index in Volumes
	Path   string `json:"path"`
}

// File is a config or secret of a container. Its content lies in the state
// directory, which root alone can enter, and gets owner and mode before the container
// starts.
type File struct {
	Name string `json:"name"` // below the container's directory of files
	UID  uint32 `json:"uid,omitempty"`
	GID  uint32 `json:"gid,omitempty"`
	Mode uint32 `json:"mode"`
}

func (d Details) encode() (*anypb.Any, error) {
	text, err := json.Marshal(d)
	if err == nil { // else nobody could read the record again, nor remove its container
		_, err = decodeDetails(text)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot encode details: %w", err)
	}
	return &anypb.Any{TypeUrl: detailsKey, Value: text}, nil
}

// decodeDetails reads the extension of a container record. What is
// wrong with what it says becomes an error here: a newer version may have
// written it, and names become file names.
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

// contentOf is what a record holds under a name; nil where there is nothing.
func contentOf(a typeurl.Any) []byte {
	if a == nil {
		return nil
	}
	return a.GetValue()
}

// labelsOf reads what a record of containerd says of one of our containers. Its database has no checksums: a medium may
// have lost the specification.
func labelsOf(r containers.Container) (Labels, error) {
	if !json.Valid(contentOf(r.Spec)) {
		return Labels{}, errors.New("cannot read specification")
	}
	return Decode(r.Labels, contentOf(r.Extensions[detailsKey]))
}
