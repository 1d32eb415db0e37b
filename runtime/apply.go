package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/log"
	"github.com/margolite/margolite/runtime/network"
)

const (
	// maxStarts is how often one Apply starts a service that ends with 0 and
	// has to run, or whose shim dies.
	maxStarts = 4

	lastLines = 20      // of a service's output that an Error quotes
	lastBytes = 4 << 10 // of them together
)

// ApplyOptions is how Apply goes about it.
type ApplyOptions struct {
	Settle time.Duration // for how long every service must run before Apply is content
	Notify func(Event)   // called as things happen, from the goroutine that called Apply; nil: nothing
}

// Event is one thing that Apply did or saw.
type Event struct {
	Step    string // what is done: the step's name, or Settling
	Service string // that it concerns, if one
	Done    bool   // false: about to be done
}

// Settling is the Step of the event that says that everything runs, and only
// has to go on.
const Settling = "settle"

// Apply makes the device run p and nothing else under its name. It returns when
// every service has run for the settling time, or a one-shot service ended
// well. It may be repeated at any time; what runs as wanted is left alone.
// The images must be staged.
//
// When Apply fails, what it did stays: apply the former project to go back.
func (e *Engine) Apply(ctx context.Context, p *Project, o ApplyOptions) error {
	ctx = e.within(ctx)
	unlock, err := e.take(ctx, p.Name)
	if err != nil {
		return fail(Internal, p.Name, err)
	}
	defer unlock()

	defer e.unclaim(p.Name)
	r, err := e.runOf(ctx, p, e.claim)
	if err != nil {
		return err
	}
	if err := e.checkPorts(ctx, r.found, p.Name, r.place); err != nil {
		return fail(codeOfNetwork(err), p.Name, err)
	}
	r.notify = o.Notify
	if err := r.untilSettled(ctx, o.Settle); err != nil {
		return err
	}
	return e.forgetPackages(p)
}

// Matches tells whether the containers on the device are those of p and no
// others. Whether they run is not asked: Run starts what stopped, by its restart
// policy and in its own time, and brings all of them back after a reboot.
func (e *Engine) Matches(ctx context.Context, p *Project) (bool, error) {
	ctx = e.within(ctx)
	unlock, err := e.projects.lock(ctx, p.Name)
	if err != nil {
		return false, fail(Internal, p.Name, err)
	}
	defer unlock()
	r, err := e.runOf(ctx, p, e.locate)
	if err != nil {
		return false, err
	}
	observed, err := r.look(ctx)
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(PlanFor(observed, r.wanted), func(s Step) bool {
		switch s.Kind {
		case CreateContainer, DeleteContainer, RecordOrder:
			return true
		}
		return false
	}), nil
}

// Remove stops and deletes everything that belongs to the project, except its
// volumes. Removing what is not there is no error.
func (e *Engine) Remove(ctx context.Context, project string) error {
	if !container.ValidName(project) {
		return &Error{Code: Unsupported, Object: project, Err: fmt.Errorf("it is no valid project name")}
	}
	ctx = e.within(ctx)
	unlock, err := e.take(ctx, project)
	if err != nil {
		return fail(Internal, project, err)
	}
	defer unlock()
	e.claimNothing(project)
	defer e.unclaim(project)

	r := &run{e: e, project: project}
	if err := r.find(ctx); err != nil {
		return err
	}
	r.place = recorded(r.found)
	r.made.ports = len(r.found) == 0
	for range maxSteps {
		observed, err := r.look(ctx)
		if err != nil {
			return err
		}
		plan := PlanFor(observed, r.wanted)
		if len(plan) == 0 {
			return e.removeRest(ctx, project)
		}
		if err := r.do(ctx, plan[0]); err != nil {
			return err
		}
	}
	return &Error{Code: Internal, Object: project, Err: fmt.Errorf("cannot remove: not done after %d steps", maxSteps)}
}

// removeRest removes what no container's labels tell of.
func (e *Engine) removeRest(ctx context.Context, project string) error {
	if err := e.containers.RemoveProject(ctx, project); err != nil {
		return fail(Internal, project, err)
	}
	if err := e.sweepNetworks(ctx); err != nil {
		return fail(Internal, project, err)
	}
	if err := e.removePackages(project); err != nil {
		return fail(Internal, project, err)
	}
	return nil
}

// take locks a project for a change. When it is let go, the supervisor looks
// after it again.
func (e *Engine) take(ctx context.Context, project string) (unlock func(), err error) {
	release, err := e.projects.lock(ctx, project)
	if err != nil {
		return nil, err
	}
	return func() {
		e.noteChange(project)
		release()
		poke(e.released)
	}, nil
}

// codeOfNetwork says what a failure of the room network is.
func codeOfNetwork(err error) Code {
	if errors.Is(err, network.ErrPortInUse) || errors.Is(err, network.ErrAddressMissing) {
		return Conflict
	}
	return Internal
}

// runOf prepares a run that leads to p: who is to run, where, and how.
func (e *Engine) runOf(ctx context.Context, p *Project, locate locator) (*run, error) {
	all, err := e.containers.List(ctx)
	if err != nil {
		return nil, &Error{Code: Internal, Object: p.Name, Err: err}
	}
	place, err := locate(all, p.Compose, p.Name)
	if err != nil {
		return nil, &Error{Code: Internal, Object: p.Name, Err: err}
	}
	r := &run{e: e, project: p.Name, place: place, found: all, configs: make(map[string]container.Config)}
	for _, box := range place.boxes {
		config, err := e.configOf(ctx, p, box.Service)
		if err != nil {
			return nil, err
		}
		config.Sandbox = e.networks.Paths(box)
		l := &config.Labels
		l.Project, l.Service, l.Number = p.Name, box.Service, box.Number
		l.Network, l.Address, l.Hostname, l.Names = place.network, box.Address, box.Hostname, box.Names
		l.Ports = place.portsOf(box)
		l.Caller = p.Labels

		r.configs[l.ID()] = config
		r.wanted.Services = append(r.wanted.Services, WantedService{
			Replica:   replicaOf(box),
			Container: l.ID(),
			Volumes:   volumesOf(config.Service),
			DependsOn: config.Service.DependsOn,
		})
	}
	return r, nil
}

// untilSettled executes the plan, one step at a time, and then watches that
// what was started goes on.
func (r *run) untilSettled(ctx context.Context, settle time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	w := r.e.watch(ctx)
	defer w.join()
	defer cancel()

	starts := make(map[string]int) // by container, of this run
	settling := false
	for range maxSteps {
		observed, err := r.look(ctx)
		if err != nil {
			return err
		}
		if err := r.ended(ctx, observed, starts); err != nil {
			return err
		}
		if plan := PlanFor(observed, r.wanted); len(plan) > 0 {
			if plan[0].Kind == StartContainer {
				starts[plan[0].Container]++
			}
			if err := r.do(ctx, plan[0]); err != nil {
				return err
			}
			continue
		}

		wait := remaining(observed, r.wanted, settle)
		if wait <= 0 {
			return nil
		}
		if !settling {
			settling = true
			r.tell(Event{Step: Settling})
		}
		if err := w.wait(ctx, wait); err != nil {
			return fail(Timeout, r.project, fmt.Errorf("cannot wait until it settles: %w", err))
		}
	}
	return &Error{Code: Internal, Object: r.project, Err: fmt.Errorf("cannot apply: not settled after %d looks", maxSteps)}
}

// ended tells that a service ended during start-up. With a code other than 0
// that fails the whole at once (PKG-13).
func (r *run) ended(ctx context.Context, o Observed, starts map[string]int) error {
	for _, s := range r.wanted.Services {
		c := o.container(s.Container)
		if c == nil || starts[c.ID] == 0 {
			continue
		}
		switch {
		case c.State == Stopped && c.ExitCode != 0:
			return &Error{Code: Exited, Object: c.Service, Err: fmt.Errorf("ended with code %d during start-up%s", c.ExitCode, r.lastOutput(ctx, c.ID))}
		case c.State == Stopped && starts[c.ID] >= maxStarts:
			return &Error{Code: Exited, Object: c.Service, Err: fmt.Errorf("ended %d times during start-up%s", starts[c.ID], r.lastOutput(ctx, c.ID))}
		case c.State == Created && starts[c.ID] >= maxStarts:
			return &Error{Code: StartFailed, Object: c.Service, Err: fmt.Errorf("its shim died %d times during start-up", starts[c.ID])}
		}
	}
	return nil
}

// remaining is how long the youngest service has to go on running; 0 when all
// have settled.
func remaining(o Observed, w Wanted, settle time.Duration) time.Duration {
	var longest time.Duration
	for _, s := range w.Services {
		c := o.container(s.Container)
		switch {
		case !c.active():
		case c.Started.IsZero(): // it ended between two looks; its exit is about to be known
			longest = max(longest, 50*time.Millisecond)
		default:
			longest = max(longest, settle-time.Since(c.Started))
		}
	}
	return longest
}

// lastOutput quotes the end of a container's log, for an error.
func (r *run) lastOutput(ctx context.Context, id string) string {
	var out bytes.Buffer
	for range 10 { // the shim may still be copying
		out.Reset()
		if err := log.Read(ctx, r.e.containers.LogPath(id), log.Options{Tail: lastLines}, &out); err == nil && out.Len() > 0 {
			break
		}
		pause(ctx, 20*time.Millisecond)
	}
	text := strings.TrimSpace(strings.ToValidUTF8(out.String(), "?"))
	if text == "" {
		return " without any output"
	}
	if len(text) > lastBytes {
		text = "..." + strings.ToValidUTF8(text[len(text)-lastBytes:], "")
	}
	return "; its last output:\n" + text
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
