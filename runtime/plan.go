package runtime

import (
	"fmt"
	"slices"
)

// Replica names one instance of a service.
type Replica struct {
	Service string
	Number  int // from 1
}

func (r Replica) String() string { return fmt.Sprintf("%s-%d", r.Service, r.Number) }

// Kind is what a Step does.
type Kind string

// The kinds of steps.
const (
	EnsureNetwork   Kind = "ensure network"
	EnsureSandbox   Kind = "ensure sandbox"
	EnsureVolume    Kind = "ensure volume"
	CreateContainer Kind = "create container"
	StopContainer   Kind = "stop container"
	StartContainer  Kind = "start container"
	RecordDone      Kind = "record done"  // a one-shot service ended well
	RecordOrder     Kind = "record order" // what the service depends on, which does not change its container
	DeleteContainer Kind = "delete container"
	RemoveSandbox   Kind = "remove sandbox"
	SyncPorts       Kind = "sync ports"
	RemoveNetwork   Kind = "remove network"
)

// Step is one change on the device. It is safe to repeat.
type Step struct {
	Kind      Kind
	Replica   Replica // whose sandbox or container
	Container string  // id, for the steps that concern one
	Volume    string  // for EnsureVolume
}

func (s Step) String() string {
	switch {
	case s.Volume != "":
		return string(s.Kind) + " " + s.Volume
	case s.Replica != Replica{}:
		return string(s.Kind) + " " + s.Replica.String()
	default:
		return string(s.Kind)
	}
}

// Plan is what is to be done, in order. It is executed one step at a time, and
// made anew after each.
type Plan []Step

// Wanted is what a project is to be.
type Wanted struct {
	Services []WantedService // each after those it depends on; none: the project is to be removed
	// AsRecorded says that the services were read from the containers
	// themselves, as after a reboot: nothing is deleted then.
	AsRecorded bool
}

// WantedService is one replica of a service as it is to be.
type WantedService struct {
	Replica
	Container string   // id, which follows from the configuration
	Volumes   []string // named volumes it mounts
	DependsOn []string // services
	Resting   bool     // it ended, or could not be started, and is left so for now
}

// Observed is what there is of a project.
type Observed struct {
	Containers []ObservedContainer // each after those it depends on
	Network    bool                // is there
	Sandboxes  map[Replica]bool
	Volumes    map[string]bool
	Ports      bool // the published ports are those of the wanted services
}

// PlanFor is what leads from observed to wanted. It depends on nothing else.
//
// What new containers need is made first, and the containers themselves, while
// the old ones still run. Then service after service, in the order of
// dependencies, the old container stops, the new one starts in the same
// sandbox, and the old one is deleted. A service that runs as wanted is not
// touched. What is not wanted any more stops before anything new starts, the
// last in the order first, and is deleted at the very end: until then its
// labels tell what there is to remove.
func PlanFor(o Observed, w Wanted) Plan {
	var plan Plan
	add := func(s Step) { plan = append(plan, s) }

	if len(w.Services) > 0 && !o.Network {
		add(Step{Kind: EnsureNetwork})
	}
	for _, s := range w.Services {
		if !o.Sandboxes[s.Replica] {
			add(Step{Kind: EnsureSandbox, Replica: s.Replica})
		}
	}
	for _, volume := range missingVolumes(o, w) {
		add(Step{Kind: EnsureVolume, Volume: volume})
	}
	for _, s := range w.Services {
		if o.container(s.Container) == nil {
			add(Step{Kind: CreateContainer, Replica: s.Replica, Container: s.Container})
		}
	}

	unwanted := o.unwanted(w)
	for _, c := range slices.Backward(unwanted) {
		if c.active() {
			add(c.step(StopContainer))
		}
	}
	for _, r := range slices.Backward(replicas(unwanted)) {
		if o.Sandboxes[r] {
			add(Step{Kind: RemoveSandbox, Replica: r})
		}
	}
	if !o.Ports {
		add(Step{Kind: SyncPorts})
	}
	if len(w.Services) == 0 && o.Network {
		add(Step{Kind: RemoveNetwork})
	}

	for _, s := range w.Services {
		plan = append(plan, swap(o, w, s)...)
	}
	for _, c := range slices.Backward(unwanted) {
		add(c.step(DeleteContainer))
	}
	return plan
}

// swap makes the container of s the one that runs, in place of those before it.
func swap(o Observed, w Wanted, s WantedService) Plan {
	var plan Plan
	var before []ObservedContainer
	for _, c := range o.Containers {
		if !w.AsRecorded && c.Replica() == s.Replica && c.ID != s.Container {
			before = append(before, c)
		}
	}

	state := Created
	c := o.container(s.Container)
	if c != nil {
		state = c.State
		if c.State == Done && !c.Recorded {
			plan = append(plan, c.step(RecordDone))
		}
		if !slices.Equal(c.DependsOn, s.DependsOn) {
			plan = append(plan, c.step(RecordOrder))
		}
	}
	starts := (state == Created || state == Stopped) && !s.Resting || c.active() && c.Astray
	if starts {
		for _, old := range before {
			if old.active() {
				plan = append(plan, old.step(StopContainer))
			}
		}
		if c.active() {
			plan = append(plan, c.step(StopContainer))
		}
		plan = append(plan, Step{Kind: StartContainer, Replica: s.Replica, Container: s.Container})
	}
	for _, old := range before {
		plan = append(plan, old.step(DeleteContainer))
	}
	return plan
}

// missingVolumes are the volumes that the wanted services mount and that are not there.
func missingVolumes(o Observed, w Wanted) []string {
	var missing []string
	for _, s := range w.Services {
		for _, volume := range s.Volumes {
			if !o.Volumes[volume] && !slices.Contains(missing, volume) {
				missing = append(missing, volume)
			}
		}
	}
	return missing
}

// unwanted are the containers of replicas that are not wanted at all.
func (o Observed) unwanted(w Wanted) []ObservedContainer {
	var unwanted []ObservedContainer
	for _, c := range o.Containers {
		if !slices.ContainsFunc(w.Services, func(s WantedService) bool { return s.Replica == c.Replica() }) {
			unwanted = append(unwanted, c)
		}
	}
	return unwanted
}

func (o Observed) container(id string) *ObservedContainer {
	i := slices.IndexFunc(o.Containers, func(c ObservedContainer) bool { return c.ID == id })
	if i < 0 {
		return nil
	}
	return &o.Containers[i]
}

// replicas are those that the containers belong to, each once.
func replicas(containers []ObservedContainer) []Replica {
	var list []Replica
	for _, c := range containers {
		if !slices.Contains(list, c.Replica()) {
			list = append(list, c.Replica())
		}
	}
	return list
}

func (c *ObservedContainer) step(k Kind) Step {
	return Step{Kind: k, Replica: c.Replica(), Container: c.ID}
}

// active tells whether a process of the container is there.
func (c *ObservedContainer) active() bool {
	return c != nil && (c.State == Running || c.State == Paused)
}
