package runtime

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/margolite/margolite/runtime/container"
)

// State is what a container does.
type State string

// The states of a container.
const (
	Created State = "created" // never started, or its task is gone (after a reboot, a killed shim)
	Running State = "running"
	Paused  State = "paused"
	Stopped State = "stopped" // its process ended; ExitCode says how
	Done    State = "done"    // a one-shot service that ended with 0: it is not started again
)

// ObservedProject is one project as found in containerd.
type ObservedProject struct {
	Name       string
	Labels     map[string]string // those that the project was loaded with
	Containers []ObservedContainer
}

// ObservedContainer is one container of a project.
type ObservedContainer struct {
	ID        string
	Service   string
	Number    int
	Hash      string // of its configuration
	Image     string // repository@digest
	Address   string
	Ports     []string // as 0.0.0.0:8080->80/tcp
	DependsOn []string // services that are started before it
	State     State
	ExitCode  int // when Stopped
	ExitedAt  time.Time
	Pid       int // when Running
	Created   time.Time
	Started   time.Time // zero unless Running
	Restarts  int       // by this process, since the container last ran well

	// Recorded says that Done is in the container's labels, and survives a reboot.
	Recorded bool
	// Astray says that it runs outside its sandbox: the sandbox was made anew
	// after the container started.
	Astray bool
}

// Replica is the instance of a service that the container is for.
func (c *ObservedContainer) Replica() Replica { return Replica{c.Service, c.Number} }

// Observe reads all projects from containerd, sorted by name; containers in
// dependency order.
func (e *Engine) Observe(ctx context.Context) ([]ObservedProject, error) {
	all, err := e.containers.List(e.within(ctx))
	if err != nil {
		return nil, err
	}
	byProject := make(map[string][]container.Container)
	for _, c := range all {
		byProject[c.Labels.Project] = append(byProject[c.Labels.Project], c)
	}
	projects := make([]ObservedProject, 0, len(byProject))
	for _, name := range slices.Sorted(maps.Keys(byProject)) {
		containers := inOrder(byProject[name])
		p := ObservedProject{Name: name, Labels: containers[0].Labels.Caller}
		for _, c := range containers {
			p.Containers = append(p.Containers, e.observe(c))
		}
		projects = append(projects, p)
	}
	return projects, nil
}

// observe adds to a container what the kernel and this process know of it.
func (e *Engine) observe(c container.Container) ObservedContainer {
	o := ObservedContainer{
		ID:        c.ID,
		Service:   c.Labels.Service,
		Number:    c.Labels.Number,
		Hash:      c.Labels.Hash,
		Image:     c.Image,
		Address:   c.Labels.Address.String(),
		DependsOn: c.Labels.DependsOn,
		State:     stateOf(c),
		ExitCode:  c.ExitCode,
		ExitedAt:  c.ExitedAt,
		Pid:       c.Pid,
		Created:   c.Created,
		Restarts:  e.restartsOf(c.ID),
		Recorded:  c.Labels.Exited,
	}
	for _, p := range c.Labels.Ports {
		o.Ports = append(o.Ports, portText(p))
	}
	if o.active() {
		o.Started = startOf(c.Pid)
		o.Astray = astray(c.Pid, e.networks.Paths(sandboxOf(c.Labels)).NetNS)
	}
	return o
}

// stateOf is the state of a container. One that was being stopped did not end
// by itself, whatever its exit code.
func stateOf(c container.Container) State {
	switch c.State {
	case container.Running:
		return Running
	case container.Paused:
		return Paused
	}
	switch {
	case c.Labels.Exited:
		return Done
	case c.State == container.Stopped && c.Labels.Stopping:
		return Created
	case c.State == container.Stopped && c.ExitCode == 0 && c.Labels.Restart.OneShot():
		return Done
	case c.State == container.Stopped:
		return Stopped
	default:
		return Created
	}
}

// inOrder sorts the containers of one project: each after those of the services
// it depends on, else by name, number and age.
func inOrder(list []container.Container) []container.Container {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b container.Container) int {
		return cmp.Or(
			cmp.Compare(a.Labels.Service, b.Labels.Service),
			cmp.Compare(a.Labels.Number, b.Labels.Number),
			a.Created.Compare(b.Created),
			cmp.Compare(a.ID, b.ID))
	})
	byService := make(map[string][]container.Container)
	for _, c := range list {
		byService[c.Labels.Service] = append(byService[c.Labels.Service], c)
	}

	ordered := make([]container.Container, 0, len(list))
	visited := make(map[string]bool)
	var visit func(service string)
	visit = func(service string) {
		if visited[service] { // also ends a cycle, which only foreign labels could have
			return
		}
		visited[service] = true
		for _, c := range byService[service] {
			for _, dependency := range c.Labels.DependsOn {
				visit(dependency)
			}
		}
		ordered = append(ordered, byService[service]...)
	}
	for _, service := range slices.Sorted(maps.Keys(byService)) {
		visit(service)
	}
	return ordered
}
