package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/runtime/network"
)

// State is the state of a container.
type State = container.State

const (
	Created       = container.Created // never started, or its task is gone (after a reboot, a killed shim)
	Running       = container.Running
	Paused        = container.Paused
	Stopped       = container.Stopped // its process ended; ExitCode says how
	Done    State = "done"            // a one-shot service that ended with 0: it is not started again
	// Unresponsive: the shim does not respond; the process may run, but its end would go unnoticed.
	Unresponsive = container.Unresponsive
)

// ObservedProject is one project as found in containerd.
type ObservedProject struct {
	Name       string
	Labels     map[string]string // those that the project was loaded with
	Containers []ObservedContainer
}

// ObservedContainer is one container of a project.
type ObservedContainer struct {
	container.Container          // with a State that may be Done, as well
	Address             string   // the first it has
	Ports               []string // as 0.0.0.0:8080->80/tcp
	// Restarting says of a Stopped container that its restart policy will start it again.
	Restarting bool
	Started    time.Time     // zero unless Running
	Restarts   int           // by this process, since the container last ran well
	Restarted  int           // by this process, in all
	Health     health.Status // without State where nothing checks it
	Waiting    string        // what it waits for before it is started
	Undecided  bool          // and that has not failed so far

	// Astray says that it runs outside its sandbox, which was made again after the start.
	Astray bool
	// Hooked says that the running process has had its post_start commands.
	Hooked bool
}

// Replica is the instance of a service that the container is for.
func (c *ObservedContainer) Replica() Replica { return Replica{c.Service, c.Number} }

// Observe reads all projects from containerd, by name, their containers in dependency order.
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
		projects = append(projects, e.observeProject(name, byProject[name]))
	}
	return projects, nil
}

// ObserveProject is Observe for one project. One that does not exist has no containers.
func (e *Engine) ObserveProject(ctx context.Context, name string) (ObservedProject, error) {
	list, err := e.containers.ListProject(e.within(ctx), name)
	if err != nil {
		return ObservedProject{}, err
	}
	return e.observeProject(name, list), nil
}

func (e *Engine) observeProject(name string, list []container.Container) ObservedProject {
	p := ObservedProject{Name: name}
	for _, c := range inOrder(list) {
		found := e.observe(c)
		if len(p.Containers) == 0 {
			p.Labels = c.Labels.Caller
		}
		p.Containers = append(p.Containers, found)
	}
	return p
}

func (e *Engine) observe(c container.Container) ObservedContainer {
	found := ObservedContainer{Container: c}
	found.State = stateOf(c)
	e.projects.with(c.Labels.Project, func(p *project) {
		found.Restarts, found.Restarted = p.known[c.ID].restarts()
		if i := slices.IndexFunc(p.waits, func(w Wait) bool { return w.Replica == found.Replica() }); i >= 0 && !found.active() {
			found.Waiting, found.Undecided = p.waits[i].For, p.waits[i].Undecided
		}
	})
	found.Restarting = found.State == Stopped && c.Labels.Restart.After(c.ExitCode, found.Restarts)
	for _, a := range c.Labels.Sandbox.Attached {
		found.Address = cmp.Or(found.Address, addressText(a.Address), addressText(a.Address6))
	}
	for _, p := range c.Labels.Ports {
		found.Ports = append(found.Ports, p.String())
	}
	if found.active() {
		found.Started = startOf(c.Pid)
		found.Astray = e.astray(c.Pid, c.Labels.Sandbox)
		found.Hooked = len(c.Labels.PostStart) == 0 || e.hooked.has(c.ID, c.Pid)
		if c.Labels.Healthcheck != nil {
			found.Health = e.health.Status(c.ID)
		}
	}
	return found
}

// Usage is the resource usage of the running containers, by id. It reads a few files for each.
func (e *Engine) Usage(ctx context.Context) (map[string]container.Usage, error) {
	all, err := e.containers.List(e.within(ctx))
	if err != nil {
		return nil, err
	}
	usage := make(map[string]container.Usage, len(all))
	for _, c := range all {
		if c.Pid != 0 {
			usage[c.ID] = e.containers.UsageOf(c)
		}
	}
	return usage, nil
}

// adoptNamespaces pins namespaces that only processes still hold: else these would be replaced.
func (e *Engine) adoptNamespaces(ctx context.Context, containers []container.Container) {
	for _, c := range containers {
		if c.State != container.Running && c.State != container.Paused {
			continue
		}
		if _, err := e.networks.Adopt(ctx, c.Labels.Sandbox, c.Pid); err != nil && ctx.Err() == nil {
			e.o.Logger.Warn("cannot save the namespace of a container", "container", c.ID, "error", err)
		}
	}
}

// astray tells whether pid is in another network namespace than s; not once it has ended.
func (e *Engine) astray(pid int, s network.Sandbox) bool {
	if s.Host {
		return false
	}
	process, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		return false
	}
	pinned, err := os.Stat(e.networks.Paths(s).NetNS)
	return err != nil || !os.SameFile(process, pinned)
}

// tendHealth has the running containers of a project probed, and no others of it.
func (e *Engine) tendHealth(project string, found []container.Container) {
	var targets []health.Target
	for _, c := range found {
		check := c.Labels.Healthcheck
		if check == nil || c.State != container.Running && c.State != container.Unresponsive {
			continue
		}
		if started := startOf(c.Pid); !started.IsZero() {
			targets = append(targets, health.Target{Container: c.ID, Process: c.Pid, Started: started, Check: *check})
		}
	}
	e.health.Tend(project, targets)
}

// Exec runs a command in a container until it ends or ctx does, and returns its exit code.
// With an error, a code above 0 is a shell's for a command that cannot be run.
func (e *Engine) Exec(ctx context.Context, in ObservedContainer, x container.Exec) (int, error) {
	code, err := e.containers.Exec(e.within(ctx), in.ID, x)
	if err != nil {
		return code, fail(Internal, in.Service, err)
	}
	return code, nil
}

func (e *Engine) probe(ctx context.Context, id string, timeout time.Duration, command []string, output io.Writer) (int, error) {
	x := container.Exec{Args: command, Own: true, Timeout: timeout, Stdout: output, Stderr: output}
	code, err := e.containers.Exec(e.within(ctx), id, x)
	if errors.Is(err, container.ErrNotTried) {
		err = fmt.Errorf("%w: %w", health.ErrNotTried, err)
	}
	return code, err
}

func addressText(a netip.Addr) string {
	text, _ := a.MarshalText() // never fails
	return string(text)
}

// stateOf is Created for a container that was being stopped, whatever its exit code.
func stateOf(c container.Container) State {
	ended := c.State == Stopped
	switch {
	case !ended && c.State != Created:
		return c.State
	case c.Labels.Exited:
		return Done
	case ended && c.Labels.Stopping:
		return Created
	case ended && c.ExitCode == 0 && c.Labels.Restart.OneShot():
		return Done
	default:
		return c.State
	}
}

// inOrder sorts the containers of one project in dependency order, then by name, number and age.
func inOrder(list []container.Container) []container.Container {
	byService := make(map[string][]container.Container)
	dependsOn := make(map[string][]compose.Dependency)
	for _, c := range list {
		byService[c.Labels.Service] = append(byService[c.Labels.Service], c)
		dependsOn[c.Labels.Service] = append(dependsOn[c.Labels.Service], c.Labels.DependsOn...)
	}
	order, _ := compose.InOrder(slices.Sorted(maps.Keys(byService)), dependsOn) // only foreign labels could have circles
	ordered := make([]container.Container, 0, len(list))
	for _, service := range order {
		ordered = append(ordered, slices.SortedFunc(slices.Values(byService[service]), func(a, b container.Container) int {
			return cmp.Or(cmp.Compare(a.Labels.Number, b.Labels.Number), a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
		})...)
	}
	return ordered
}
