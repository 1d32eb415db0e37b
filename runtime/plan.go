package runtime

import (
	"fmt"
	"slices"
	"strings"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/health"
)

// Replica names one instance of a service.
type Replica struct {
	Service string
	Number  int // from 1
}

func (r Replica) String() string { return fmt.Sprintf("%s-%d", r.Service, r.Number) }

// Kind is the kind of a Step.
type Kind string

const (
	EnsureNetwork   Kind = "ensure network" // and the sandboxes on it
	CreateContainer Kind = "create container"
	StopContainer   Kind = "stop container"
	StartContainer  Kind = "start container"
	RunHooks        Kind = "run hooks"    // those of after the start
	RecordDone      Kind = "record done"  // a one-shot service ended well
	RecordOrder     Kind = "record order" // what the service depends on, which does not change its container
	DeleteContainer Kind = "delete container"
	SyncPorts       Kind = "sync ports"
	RemoveNetwork   Kind = "remove network" // and the sandboxes of what is not wanted, unless others need them
)

// Step is one change on the device. It is safe to repeat.
type Step struct {
	Kind      Kind
	Replica   Replica // whose sandbox or container
	Container string  // id, for the steps that concern one
	Network   string  // its name, or all names, for the steps that concern networks
}

func (s Step) String() string {
	switch {
	case s.Network != "":
		return string(s.Kind) + " " + s.Network
	case s.Replica != Replica{}:
		return string(s.Kind) + " " + s.Replica.String()
	default:
		return string(s.Kind)
	}
}

// Sequence is steps to be executed in order.
type Sequence []Step

// Group is independent sequences, which may be executed in parallel.
type Group []Sequence

// Plan is what to do now, group after group, and what has to wait. Plans are not reused.
type Plan struct {
	Groups []Group
	Waits  []Wait
}

// Wait is a replica that cannot start yet.
type Wait struct {
	Replica
	For string // as "db-1 to be healthy"
	// Undecided says that For has not failed so far, Never that it cannot come true any more.
	Undecided, Never bool
}

func (w Wait) String() string { return w.Replica.String() + " waits for " + w.For }

// Wanted is what a project is to be.
type Wanted struct {
	Services []WantedService // each after those it depends on; none: nothing is to run
	// AsRecorded: the services were read from the containers, as after a reboot; none is deleted.
	AsRecorded bool
}

// WantedService is one wanted replica of a service.
type WantedService struct {
	seat
	Container string // id, which follows from the configuration
	DependsOn []compose.Dependency
	Hooks     bool // commands are to run in it after its start
	Resting   bool // it ended, or could not be started, and is left so for now
}

func (w *Wanted) place() placement {
	var p placement
	for _, s := range w.Services {
		p = append(p, s.seat)
	}
	return p
}

func (w *Wanted) service(container string) *WantedService {
	return &w.Services[slices.IndexFunc(w.Services, func(s WantedService) bool { return s.Container == container })]
}

// Observed is what exists of a project.
type Observed struct {
	Containers []ObservedContainer // each after those it depends on
	Network    bool                // the networks and sandboxes of the wanted services are there
	Stale      []string            // networks that containers of the project were made for, and that are not wanted
	Swept      bool                // what is not wanted has nothing left on the network
	Sandboxes  map[Replica]bool    // of the wanted services: those that are there, also those that they join
	Ports      bool                // the published ports are those of the wanted services
}

// PlanFor leads from o to w, as far as that is possible now. It is a pure function.
//
// New containers and what they need are made first, while the old ones still run. As soon
// as the dependencies of a service allow it, its old container stops, the new one starts in
// the same sandbox, and the old one is deleted. A service that runs as wanted is not touched.
// Unwanted services stop before anything new starts, dependents first, and are deleted last:
// until then their labels tell what there is to remove.
func PlanFor(o Observed, w Wanted) Plan {
	p := planner{o: o, w: w}
	p.need()
	unwanted := slices.DeleteFunc(slices.Clone(o.Containers), func(c ObservedContainer) bool {
		return slices.ContainsFunc(w.Services, func(s WantedService) bool { return s.Replica == c.Replica() })
	})
	p.dismiss(unwanted)
	p.publish(unwanted)

	var swaps Group
	for _, s := range w.Services {
		swaps.add(p.swap(s)...)
	}
	p.add(swaps)

	var deletions Group
	for _, c := range slices.Backward(unwanted) {
		deletions.add(c.step(DeleteContainer))
	}
	p.add(deletions)
	return p.plan
}

type planner struct {
	o    Observed
	w    Wanted
	plan Plan
}

func (p *planner) add(g Group) {
	if len(g) > 0 {
		p.plan.Groups = append(p.plan.Groups, g)
	}
}

func (g *Group) add(steps ...Step) {
	if len(steps) > 0 {
		*g = append(*g, steps)
	}
}

func (p *planner) need() {
	if p.lacksNetwork() {
		p.add(Group{{{Kind: EnsureNetwork, Network: strings.Join(p.w.place().networkNames(), ", ")}}})
	}
	var containers Group
	for _, s := range p.w.Services {
		if p.o.container(s.Container) == nil {
			containers.add(Step{Kind: CreateContainer, Replica: s.Replica, Container: s.Container})
		}
	}
	p.add(containers)
}

func (p *planner) lacksNetwork() bool { return !p.o.Network && len(p.w.Services) > 0 }

func (p *planner) dismiss(unwanted []ObservedContainer) {
	var running []ObservedContainer
	for _, c := range slices.Backward(unwanted) {
		if c.active() {
			running = append(running, c)
		}
	}
	for len(running) > 0 {
		var level Group
		var needed []ObservedContainer
		for i, c := range running { // dependents come first: each level has one at least
			if slices.ContainsFunc(running[:i], func(other ObservedContainer) bool { return other.needs(c) }) {
				needed = append(needed, c)
			} else {
				level.add(c.step(StopContainer))
			}
		}
		p.add(level)
		running = needed
	}
}

// publish syncs rules and hosts files, also for new sandboxes, and removes stale parts of the
// network: after the rules that name them, and before what starts next may get their addresses.
func (p *planner) publish(unwanted []ObservedContainer) {
	var g Group
	var steps []Step
	if !p.o.Ports || p.lacksNetwork() {
		steps = append(steps, Step{Kind: SyncPorts})
	}
	if !p.o.Swept && (len(p.o.Stale) > 0 || len(unwanted) > 0) {
		steps = append(steps, Step{Kind: RemoveNetwork, Network: strings.Join(p.o.Stale, ", ")})
	}
	g.add(steps...)
	p.add(g)
}

// swap replaces the former containers of s by the wanted one.
func (p *planner) swap(s WantedService) []Step {
	var steps []Step
	var before []ObservedContainer
	for _, c := range p.o.Containers {
		if !p.w.AsRecorded && c.Replica() == s.Replica && c.ID != s.Container {
			before = append(before, c)
		}
	}

	state := Created
	c := p.o.container(s.Container)
	if c != nil {
		state = c.State
		if c.State == Done && !c.Exited {
			steps = append(steps, c.step(RecordDone))
		}
		if !slices.Equal(c.DependsOn, s.DependsOn) {
			steps = append(steps, c.step(RecordOrder))
		}
	}
	start := Step{Kind: StartContainer, Replica: s.Replica, Container: s.Container}
	hooks := Step{Kind: RunHooks, Replica: s.Replica, Container: s.Container}
	starts := (state == Created || state == Stopped) && !s.Resting || c.active() && (c.Astray || p.outdated(s, c))
	switch {
	case starts:
		if wait, waits := p.wait(s); waits {
			p.plan.Waits = append(p.plan.Waits, wait)
			return steps // what runs in its place goes on
		}
		for _, old := range before {
			if old.active() {
				steps = append(steps, old.step(StopContainer))
			}
		}
		if c.active() {
			steps = append(steps, c.step(StopContainer))
		}
		steps = append(steps, start)
		if s.Hooks {
			steps = append(steps, hooks)
		}
	case c.active() && s.Hooks && !c.Hooked:
		steps = append(steps, hooks)
	}
	for _, old := range before {
		steps = append(steps, old.step(DeleteContainer))
	}
	return steps
}

// outdated tells whether c has to restart because a dependency was replaced after it started.
func (p *planner) outdated(s WantedService, c *ObservedContainer) bool {
	for _, d := range s.DependsOn {
		if !d.Restart {
			continue
		}
		for _, other := range p.w.Services {
			if other.Service != d.Service {
				continue
			}
			o := p.o.container(other.Container)
			if o.active() && !c.Started.IsZero() && o.Created.After(c.Started) && !o.Created.After(o.Started) {
				return true
			}
		}
	}
	return false
}

func (p *planner) wait(s WantedService) (Wait, bool) {
	if !s.own() && !p.o.Sandboxes[s.Replica] {
		return Wait{Replica: s.Replica, For: s.joins() + ", whose network it shares"}, true
	}
	for _, d := range s.DependsOn {
		for _, on := range p.w.Services {
			if on.Service != d.Service {
				continue
			}
			if what, failed := p.lacks(on, d.Condition); what != "" && (d.Required || !failed) {
				c := p.o.container(on.Container)
				recovers := c.active() && c.Health.State != ""
				return Wait{Replica: s.Replica, For: on.String() + " " + what, Undecided: !failed, Never: failed && !recovers}, true
			}
		}
	}
	return Wait{}, false
}

// lacks says what a service lacks of a condition, "" if it holds, and whether it failed.
func (p *planner) lacks(s WantedService, condition compose.Condition) (what string, failed bool) {
	c := p.o.container(s.Container)
	switch condition {
	case compose.ConditionHealthy:
		switch {
		case c.active() && c.Health.State == "":
			return "to be healthy, which nothing checks", true
		case c.active() && c.Health.State == health.Healthy:
			return "", false
		case c.active() && c.Health.State == health.Unhealthy:
			return "to be healthy, which it is not", true
		case c != nil && c.State == Done, s.ended(c):
			return "to be healthy, which has ended", true
		}
		return "to be healthy", false
	case compose.ConditionCompleted:
		switch {
		case c != nil && (c.State == Done || c.State == Stopped && c.ExitCode == 0):
			return "", false
		case s.ended(c):
			return fmt.Sprintf("to complete, which ended with code %d", c.ExitCode), true
		}
		return "to complete", false
	default:
		switch {
		case s.Resting, c != nil && c.State == Done, c.active() && (c.Hooked || !s.Hooks):
			return "", false
		case c.active():
			return "to run its hooks", false
		}
		return "to start", false
	}
}

// ended tells whether the service failed and is left as it is.
func (s WantedService) ended(c *ObservedContainer) bool {
	return c != nil && c.State == Stopped && c.ExitCode != 0 && s.Resting
}

func (o Observed) container(id string) *ObservedContainer {
	i := slices.IndexFunc(o.Containers, func(c ObservedContainer) bool { return c.ID == id })
	if i < 0 {
		return nil
	}
	return &o.Containers[i]
}

// needs tells whether the service of c depends on that of other.
func (c *ObservedContainer) needs(other ObservedContainer) bool {
	return c.Service != other.Service && slices.ContainsFunc(c.DependsOn, func(d compose.Dependency) bool { return d.Service == other.Service })
}

func (c *ObservedContainer) step(k Kind) Step {
	return Step{Kind: k, Replica: c.Replica(), Container: c.ID}
}

// active tells whether the container has a process, as far as is known.
func (c *ObservedContainer) active() bool {
	return c != nil && (c.State == Running || c.State == Paused || c.State == Unresponsive)
}
