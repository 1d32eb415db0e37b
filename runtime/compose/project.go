package compose

import (
	"net/netip"
	"slices"

	"github.com/compose-spec/compose-go/v2/types"
)

// Project is a Compose project of which this runtime supports everything.
type Project struct {
	Name       string
	WorkingDir string // holds the Compose file; relative paths start here
	// Services by name, with everything resolved: this is what the runtime runs.
	Services map[string]*Service
	// Compose is the model that Services was taken from.
	Compose *types.Project
	// Warnings tell people what is likely not what they meant: variables that
	// are not set, keys that are obsolete.
	Warnings []string
}

// Service is one service of a project in the words of this runtime. What it does
// not hold, a container cannot have.
type Service struct {
	Name          string
	ContainerName string // a name for people; nothing resolves it
	Image         string // normalised: docker.io/library/nginx:latest
	// Entrypoint and Command replace those of the image; nil: as in the image,
	// empty: none.
	Entrypoint  []string
	Command     []string
	Environment map[string]string
	WorkingDir  string // empty: as in the image
	User        string // user[:group], names or numbers; empty: as in the image
	Labels      map[string]string
	Mounts      []Mount // in order of their targets
	Tmpfs       []Tmpfs // in order of their targets
	Ports       []Port  // sorted
	ReadOnly    bool    // the root file system
	Memory      int64   // limit in bytes; 0: none
	NanoCPUs    int64   // limit in billionths of a CPU; 0: none
	Restart     Restart
	DependsOn   []string // services that are started before this one, sorted
}

// Mount is a named volume or a path of the device in a container. Exactly one of
// Volume and Path is set.
type Mount struct {
	Volume string // name of the volume within the project
	Path   string // absolute, cleaned path on the device
	Target string // absolute, cleaned path in the container

	ReadOnly    bool
	Create      bool   // Path: make a directory there when nothing is there
	Propagation string // Path: private, rslave, ...; empty: rprivate
	NoCopy      bool   // Volume: leave a new volume empty instead of filling it from the image
}

// Tmpfs is a file system in memory.
type Tmpfs struct {
	Target  string
	Options []string // mount options as given, checked and sorted: "noexec", "size=64m", ...
}

// Port is a port of a container that is published on the device.
type Port struct {
	HostIP        netip.Addr // the zero value: every address of the device
	HostPort      uint16
	ContainerPort uint16
	Protocol      string // tcp or udp
}

// RestartMode says when an ended container is started again.
type RestartMode string

// The restart modes of Compose.
const (
	RestartNo            RestartMode = "no"
	RestartAlways        RestartMode = "always"
	RestartOnFailure     RestartMode = "on-failure"
	RestartUnlessStopped RestartMode = "unless-stopped"
)

// Restart is the restart policy of a service.
type Restart struct {
	Mode       RestartMode
	MaxRetries int // with on-failure; 0: no bound
}

// Order is the names of the services, each after those it depends on; services
// that do not depend on each other are in order of their names.
func (p *Project) Order() []string {
	order := make([]string, 0, len(p.Services))
	done := make(map[string]bool, len(p.Services))
	var visit func(name string)
	visit = func(name string) {
		if done[name] {
			return
		}
		done[name] = true // Load has refused cycles
		for _, dependency := range p.Services[name].DependsOn {
			visit(dependency)
		}
		order = append(order, name)
	}
	for _, name := range p.names() {
		visit(name)
	}
	return order
}

// Images are the images of all services, sorted, each once.
func (p *Project) Images() []string {
	var images []string
	for _, s := range p.Services {
		images = append(images, s.Image)
	}
	slices.Sort(images)
	return slices.Compact(images)
}

// Volumes are the names of the volumes that the services use, sorted, each once.
func (p *Project) Volumes() []string {
	var volumes []string
	for _, s := range p.Services {
		for _, m := range s.Mounts {
			if m.Volume != "" {
				volumes = append(volumes, m.Volume)
			}
		}
	}
	slices.Sort(volumes)
	return slices.Compact(volumes)
}

func (p *Project) names() []string {
	names := make([]string, 0, len(p.Services))
	for name := range p.Services {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
