package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/runtime/container"
)

// abreast is how many sequences of a plan are executed in parallel.
const abreast = 4

// run converges one project. Its holder has the project's lock.
type run struct {
	e       *Engine
	project string
	wanted  Wanted
	configs map[string]container.Config // by container id, of those that this run creates
	notify  func(Event)
	grace   *time.Duration // for each container to stop; nil: its own

	known []string              // ids of all its containers; none: where these are not known to be all
	read  bool                  // found is what was just read, without states; the next look only asks for these
	found []container.Container // by the last look, in order
	last  Observed              // by it
	told  int                   // how often something had happened to the project when it began
	plan  Plan                  // that followed

	filling sync.Mutex // one container at a time fills volumes, of which two may mount the same
	first   sync.Mutex // held by a start that may bring up the project's shim
	shim    bool       // it is up, and stays unless a container is stopped; guarded by first

	made  made
	swept bool // it removed what was not needed of the network

	mu      sync.Mutex     // guards what follows, while sequences are executed side by side
	steps   int            // that it began
	starts  map[string]int // by container, of this run
	stopped bool           // it stopped a container
}

// made is what a run has brought up to date itself. What it merely found may be incomplete.
type made struct {
	network bool // networks and sandboxes
	ports   bool
	seats   placement // that the ports and hosts files are for since the last change; nil: not known
}

func (r *run) find(ctx context.Context) error {
	var own []container.Container
	var err error
	switch {
	case r.read:
		own, err = r.e.containers.WithStates(ctx, r.found)
	case len(r.known) > 0:
		own, err = r.e.containers.ListIDs(ctx, r.known)
	default:
		own, err = r.e.containers.ListProject(ctx, r.project)
	}
	if err != nil {
		return &Error{Code: Internal, Object: r.project, Err: err}
	}
	r.read = false
	r.take(own)
	r.e.adoptNamespaces(ctx, r.found)
	r.last = Observed{}
	for _, c := range r.found {
		r.last.Containers = append(r.last.Containers, r.e.observe(c))
	}
	return nil
}

// take notes the containers before their states are read, so that no event is missed.
func (r *run) take(own []container.Container) {
	r.found = inOrder(own)
	r.e.projects.noteFound(r.project, own)
}

func (r *run) observe() {
	o := &r.last
	o.Sandboxes = make(map[Replica]bool)
	place := r.wanted.place()
	o.Network = r.made.network
	o.Ports = r.made.ports
	for _, s := range r.wanted.Services {
		o.Sandboxes[s.Replica] = r.e.networks.Has(s.Sandbox)
		o.Network = o.Network && (o.Sandboxes[s.Replica] || !s.own())
	}
	o.Swept = r.swept || r.wanted.AsRecorded // others of a replica are none of the supervisor's
	o.Stale = slices.DeleteFunc(recorded(r.found).networkNames(), func(name string) bool {
		return slices.Contains(place.networkNames(), name)
	})
	r.e.tendHealth(r.project, r.found)
}

type failure struct {
	step Step
	err  error
}

// carryOut executes the plan. After a failure, running sequences finish, and no others begin.
func (r *run) carryOut(ctx context.Context) []failure {
	for _, g := range r.plan.Groups {
		if failed := r.sideBySide(ctx, g); len(failed) > 0 {
			return failed
		}
	}
	return nil
}

func (r *run) sideBySide(ctx context.Context, g Group) []failure {
	failed := make([][]failure, len(g))
	var over atomic.Bool
	var workers errgroup.Group
	workers.SetLimit(abreast)
	for n, sequence := range g {
		workers.Go(func() (panicked error) {
			if over.Load() {
				return nil
			}
			panicked = contain.Call(func() error {
				failed[n] = r.inOrder(ctx, sequence)
				return nil
			})
			if panicked != nil || len(failed[n]) > 0 {
				over.Store(true)
			}
			return panicked
		})
	}
	if panicked := workers.Wait(); panicked != nil {
		panic(panicked) // it is the caller's
	}
	return slices.Concat(failed...)
}

func (r *run) inOrder(ctx context.Context, s Sequence) []failure {
	for _, step := range s {
		if err := r.do(ctx, step); err != nil {
			return []failure{{step, err}}
		}
	}
	return nil
}

func (r *run) do(ctx context.Context, s Step) error {
	if err := ctx.Err(); err != nil {
		return fail(Internal, r.object(s), fmt.Errorf("cannot %s: %w", s, err))
	}
	r.note(func() { r.steps++ })
	r.e.o.OnStep("before " + s.String())
	r.tell(Event{Step: s.String(), Service: s.Replica.Service})
	if err := r.execute(ctx, s); err != nil {
		code := Internal
		if s.Kind == CreateContainer || s.Kind == StartContainer {
			code = StartFailed
		}
		return fail(code, r.object(s), err)
	}
	r.tell(Event{Step: s.String(), Service: s.Replica.Service, Done: true})
	r.e.o.OnStep("after " + s.String())
	return nil
}

func (r *run) tell(e Event) {
	if r.notify == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notify(e)
}

func (r *run) note(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

func (r *run) execute(ctx context.Context, s Step) error {
	switch s.Kind {
	case EnsureNetwork:
		err := r.e.places.ensure(ctx, r.wanted.place())
		r.made.network, r.made.ports = err == nil, false
		return err
	case SyncPorts:
		err := r.e.places.syncPorts(ctx)
		r.made.ports = err == nil
		return err
	case CreateContainer:
		return r.create(ctx, s)
	case StartContainer:
		defer r.e.projects.with(r.project, r.e.projects.tellWaiting)
		return r.start(ctx, s.Container)
	case RunHooks:
		return r.runHooks(ctx, s)
	case StopContainer:
		r.note(func() { r.stopped = true })
		return r.e.containers.Stop(ctx, s.Container, r.grace)
	case RecordDone:
		return r.e.containers.MarkDone(ctx, s.Container)
	case RecordOrder:
		return r.e.containers.SetDependsOn(ctx, s.Container, r.wanted.service(s.Container).DependsOn)
	case DeleteContainer:
		return r.deleteContainer(ctx, s.Container)
	case RemoveNetwork:
		err := r.e.places.sweep(ctx, r.project)
		r.swept = err == nil
		return err
	default:
		return fmt.Errorf("unknown step %q", s.Kind)
	}
}

func (r *run) create(ctx context.Context, s Step) error {
	config, ok := r.configs[s.Container]
	if !ok {
		return fail(Internal, r.object(s), errors.New("its configuration is unknown"))
	}
	r.e.projects.with(r.project, func(p *project) { p.known[s.Container] = &history{} })
	if slices.ContainsFunc(config.Service.Mounts, func(m compose.Mount) bool { return m.Volume != "" }) {
		r.filling.Lock()
		defer r.filling.Unlock()
	}
	return r.e.containers.Create(ctx, config)
}

// start starts a container, one at a time: two of a project could each bring up a shim.
func (r *run) start(ctx context.Context, id string) error {
	r.note(func() {
		if r.starts == nil {
			r.starts = make(map[string]int)
		}
		r.starts[id]++
	})
	r.e.projects.with(r.project, func(p *project) { p.known[id].starts(time.Now()) })
	r.first.Lock()
	isUp := r.shim
	r.note(func() { isUp = isUp && !r.stopped }) // it ends with the last container that is stopped
	if isUp {
		r.first.Unlock()
		return r.e.containers.Start(ctx, id)
	}
	defer r.first.Unlock()
	err := r.e.containers.Start(ctx, id)
	r.shim = err == nil
	return err
}

// object is what an error of the step is about: its service, if it has one.
func (r *run) object(s Step) string {
	return cmp.Or(s.Replica.Service, r.project)
}
