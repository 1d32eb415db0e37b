package runtime

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/margolite/margolite/runtime/container"
)

// maxSteps bounds one run: a project that needs more does not converge.
const maxSteps = 2000

// run brings one project to what is wanted. Whoever has one holds the project's lock.
type run struct {
	e       *Engine
	project string
	wanted  Wanted
	place   placement
	configs map[string]container.Config // by container id, of those that can be created
	made    made
	notify  func(Event)

	found []container.Container // of the project, by the last look
}

// made is what a run brought up to date itself. What merely is there may be
// half there.
type made struct {
	network bool
	boxes   map[Replica]bool
	ports   bool
}

// look observes the project.
func (r *run) look(ctx context.Context) (Observed, error) {
	if err := r.find(ctx); err != nil {
		return Observed{}, err
	}
	return r.observed(), nil
}

// find reads the containers of the project from containerd.
func (r *run) find(ctx context.Context) error {
	all, err := r.e.containers.List(ctx)
	if err != nil {
		return &Error{Code: Internal, Object: r.project, Err: err}
	}
	r.found = inOrder(slices.DeleteFunc(all, func(c container.Container) bool { return c.Labels.Project != r.project }))
	return nil
}

// observed adds to the containers that were found what else there is.
func (r *run) observed() Observed {
	remove := len(r.wanted.Services) == 0
	o := Observed{
		Network:   hasNetwork(r.place.network) && (r.made.network || remove),
		Sandboxes: make(map[Replica]bool),
		Volumes:   make(map[string]bool),
		Ports:     r.made.ports,
	}
	for _, c := range r.found {
		observed := r.e.observe(c)
		o.Containers = append(o.Containers, observed)
		o.Sandboxes[observed.Replica()] = hasSandbox(r.e.networks.Paths(sandboxOf(c.Labels)).NetNS)
	}
	for _, s := range r.wanted.Services {
		box, _ := r.place.box(s.Replica)
		o.Sandboxes[s.Replica] = r.made.boxes[s.Replica] && hasSandbox(r.e.networks.Paths(box).NetNS)
		for _, volume := range s.Volumes {
			o.Volumes[volume] = r.e.containers.HasVolume(r.project, volume)
		}
	}
	return o
}

// do executes one step.
func (r *run) do(ctx context.Context, s Step) error {
	r.e.o.OnStep("before " + s.String())
	r.tell(Event{Step: s.String(), Service: s.Replica.Service})
	if err := r.execute(ctx, s); err != nil {
		return err
	}
	r.tell(Event{Step: s.String(), Service: s.Replica.Service, Done: true})
	r.e.o.OnStep("after " + s.String())
	return nil
}

func (r *run) tell(e Event) {
	if r.notify != nil {
		r.notify(e)
	}
}

func (r *run) execute(ctx context.Context, s Step) error {
	internal := func(err error) error {
		if err == nil {
			return nil
		}
		return fail(Internal, r.object(s), err)
	}
	switch s.Kind {
	case EnsureNetwork:
		if err := r.e.networks.EnsureNetwork(ctx, r.place.network); err != nil {
			return internal(err)
		}
		r.made.network, r.made.ports = true, false
		return nil
	case EnsureSandbox:
		box, ok := r.place.box(s.Replica)
		if !ok {
			return internal(errors.New("it has no place on the network"))
		}
		if _, err := r.e.networks.EnsureSandbox(ctx, box, r.place.hosts(s.Replica)); err != nil {
			return internal(err)
		}
		if r.made.boxes == nil {
			r.made.boxes = make(map[Replica]bool)
		}
		r.made.boxes[s.Replica] = true
		return nil
	case SyncPorts:
		if err := r.e.syncPorts(ctx); err != nil {
			return fail(codeOfNetwork(err), r.project, err)
		}
		r.made.ports = true
		return nil
	case EnsureVolume:
		return internal(r.e.containers.EnsureVolume(r.project, s.Volume))
	case CreateContainer:
		config, ok := r.configs[s.Container]
		if !ok {
			return internal(errors.New("its configuration is not known"))
		}
		if err := r.e.containers.Create(ctx, config, r.unusedVolumes(config)); err != nil {
			return fail(StartFailed, r.object(s), err)
		}
		return nil
	case StartContainer:
		r.e.noteStart(s.Container)
		if err := r.e.containers.Start(ctx, s.Container); err != nil {
			return fail(StartFailed, r.object(s), err)
		}
		return nil
	case StopContainer:
		return internal(r.e.containers.Stop(ctx, s.Container))
	case RecordDone:
		return internal(r.e.containers.MarkDone(ctx, s.Container))
	case RecordOrder:
		return internal(r.e.containers.SetDependsOn(ctx, s.Container, r.configs[s.Container].Service.DependsOn))
	case DeleteContainer:
		return internal(r.e.containers.Delete(ctx, s.Container))
	case RemoveSandbox:
		for _, c := range r.found {
			if box := sandboxOf(c.Labels); replicaOf(box) == s.Replica {
				return internal(r.e.networks.RemoveSandbox(ctx, box))
			}
		}
		return nil
	case RemoveNetwork:
		return internal(r.e.networks.RemoveNetwork(ctx, r.place.network))
	default:
		return internal(fmt.Errorf("unknown step %q", s.Kind))
	}
}

// object is what an error of the step is about: a service where there is one.
func (r *run) object(s Step) string {
	if s.Replica.Service != "" {
		return s.Replica.Service
	}
	return r.project
}

// unusedVolumes are the volumes of a container that no running one has mounted:
// these may be replaced by content of the image while they are empty.
func (r *run) unusedVolumes(config container.Config) []string {
	var unused []string
	for _, m := range config.Service.Mounts {
		used := slices.ContainsFunc(r.found, func(c container.Container) bool {
			return c.State != container.Created && slices.Contains(c.Labels.Volumes, m.Volume)
		})
		if m.Volume != "" && !used {
			unused = append(unused, m.Volume)
		}
	}
	return unused
}
