package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/runtime/log"
)

const (
	// maxStarts is how often Apply starts a service that has to run but ends with 0, or loses its shim.
	maxStarts = 4

	// longPause is how long to wait for something that announces itself.
	longPause = time.Minute

	tidyTimeout  = 30 * time.Second
	quoteTimeout = 2 * time.Second // to read what services said last

	lastLines = 20      // of a service's output that an Error quotes
	lastBytes = 4 << 10 // of them together
)

// ApplyOptions are the options of Apply.
type ApplyOptions struct {
	Settle time.Duration // how long every service must run before Apply returns
	Notify func(Event)   // called for each event, one call at a time; may be nil
}

// Event is a step of Apply, about to begin or done.
type Event struct {
	Step    string // what is done: the step's name, or Settling
	Service string // concerned, if any
	Done    bool   // false: about to be done
}

// Settling is the Step of the event that says that everything runs and has to keep running.
const Settling = "settle"

// Apply makes the device run p and nothing else under its name. It returns when every
// service has run for the settling time and is healthy if it has a health check, or was
// one-shot and succeeded. It is safe to repeat and leaves alone what runs as wanted. The
// images must be staged.
//
// When Apply fails, its changes stay, except containers that never ran and would replace
// another: apply the former project to go back.
func (e *Engine) Apply(ctx context.Context, p *Project, o ApplyOptions) error {
	ctx = e.within(ctx)
	letGo, err := e.projects.take(ctx, p.Name)
	if err != nil {
		return fail(Internal, p.Name, err)
	}
	done := &made{}
	defer func() { letGo(done) }()

	defer e.places.unclaim(p.Name)
	r, err := runOf(ctx, e, p)
	if err != nil {
		return err
	}
	r.notify = o.Notify
	if err := r.untilSettled(ctx, o.Settle); err != nil {
		r.tidy(ctx)
		return err
	}
	if r.steps == 0 {
		done = nil
	} else {
		r.made.seats = r.wanted.place()
		done = &r.made
	}
	return e.packages.forget(ctx, p)
}

// Matches tells whether the containers on the device are exactly those of p, running or not: Run
// restarts them. It is cheap and changes nothing.
func (e *Engine) Matches(ctx context.Context, p *Project) (bool, error) {
	o, err := e.Outline(p)
	if err != nil {
		return false, err
	}
	return e.finds(ctx, o, func(ctx context.Context) ([]container.Container, error) {
		return e.containers.RecordedOf(ctx, p.Name)
	})
}

// Outline is what Matches compares: small enough to keep where loading takes long.
type Outline struct {
	Project    string
	Package    digest.Digest                   // of the package that it was loaded from, if any
	containers map[string][]compose.Dependency // what they depend on, by id
}

// Outline returns the outline of a project whose images are staged. It is the same as long
// as p is loaded from the same files, with the same environment and images.
func (e *Engine) Outline(p *Project) (Outline, error) {
	o := Outline{Project: p.Name, Package: p.Digest, containers: make(map[string][]compose.Dependency)}
	replicas, err := p.replicas()
	for _, r := range replicas {
		o.containers[r.id()] = r.service.DependsOn
	}
	return o, err
}

// finds tells whether the containers read are exactly those of the outline.
func (e *Engine) finds(ctx context.Context, o Outline, read func(context.Context) ([]container.Container, error)) (bool, error) {
	ctx = e.within(ctx)
	unlock, err := e.projects.changing.lock(ctx, o.Project)
	if err != nil {
		return false, fail(Internal, o.Project, err)
	}
	defer unlock()
	found, err := read(ctx)
	if err != nil {
		return false, &Error{Code: Internal, Object: o.Project, Err: err}
	}
	are := make(map[string][]compose.Dependency)
	for _, c := range found {
		are[c.ID] = c.Labels.DependsOn
	}
	same := maps.EqualFunc(are, o.containers, slices.Equal)
	if same {
		e.projects.with(o.Project, (*project).decide)
	}
	return same, nil
}

// Intact tells whether a project that matched, or was applied, still has all of its
// containers. Unlike Matches it reads only their records and does not notice added ones.
func (e *Engine) Intact(ctx context.Context, o Outline) (bool, error) {
	return e.finds(ctx, o, func(ctx context.Context) ([]container.Container, error) {
		return e.containers.RecordedIDs(ctx, slices.Collect(maps.Keys(o.containers)))
	})
}

// LeaveAlone keeps Run from starting anything of projects until they are applied, found to
// match, or removed. Call it before Run, for projects that are still to be decided on.
func (e *Engine) LeaveAlone(projects ...string) {
	for _, name := range projects {
		e.projects.with(name, func(p *project) { p.left = true })
	}
}

// runOf claims the place of p and prepares a run that leads to p.
func runOf(ctx context.Context, e *Engine, p *Project) (*run, error) {
	replicas, err := p.replicas()
	if err != nil {
		return nil, err
	}
	own, place, err := e.places.claim(ctx, p, replicas)
	if err != nil {
		return nil, err
	}
	r := &run{e: e, project: p.Name, configs: make(map[string]container.Config)}
	r.take(own)
	r.read = true
	e.networks.RefreshFiles()
	r.made.network = e.networks.InOrder(place.networks(), place.sandboxes(), place.ports())
	e.projects.with(p.Name, func(p *project) { // as long as the supervisor watches over what was made before
		r.made.ports = r.made.network && p.made.ports && len(p.made.seats) > 0 && reflect.DeepEqual(p.made.seats, place)
	})
	for n, b := range replicas {
		seat, id := place[n], b.id()
		if !slices.ContainsFunc(r.found, func(c container.Container) bool { return c.ID == id }) {
			if r.configs[id], err = b.config(ctx, e, seat); err != nil {
				return nil, err
			}
			if err := e.containers.Check(ctx, r.configs[id]); err != nil {
				return nil, fail(StartFailed, p.Name, err)
			}
		}
		r.wanted.Services = append(r.wanted.Services, WantedService{
			seat:      seat,
			Container: id,
			DependsOn: b.service.DependsOn,
			Hooks:     len(b.service.PostStart) > 0,
		})
	}
	return r, nil
}

// applying is the goal of Apply and, with no services wanted, of Remove.
type applying struct {
	*run
	settle   time.Duration
	begun    time.Time
	settling bool
	waits    bool // it waits for something to happen
}

func (r *run) untilSettled(ctx context.Context, settle time.Duration) error {
	r.e.projects.listen()
	a := &applying{run: r, settle: settle, begun: time.Now()}
	err := r.converge(ctx, a)
	if err != nil && ctx.Err() != nil && a.waits {
		return a.unsettled(ctx)
	}
	return err
}

func (a *applying) want(ctx context.Context) (done bool, err error) {
	a.waits = false
	return len(a.wanted.Services) == 0 && len(a.found) == 0, a.ended(ctx, false)
}

// carriedOut tolerates services that could not be started and are optional: these rest.
func (a *applying) carriedOut(_ context.Context, failed []failure) (err error) {
	for _, f := range failed {
		starting := f.step.Kind == StartContainer || f.step.Kind == RunHooks
		if !starting || !a.rest(f.step.Container) {
			err = errors.Join(err, f.err)
		}
	}
	a.waits = err == nil && len(a.plan.Waits) > 0
	return err
}

func (a *applying) idle(ctx context.Context) (done bool, err error) {
	for _, w := range a.plan.Waits {
		if w.Never {
			return false, &Error{Code: StartFailed, Object: w.Service, Err: fmt.Errorf("cannot start: it waits for %s", w.For)}
		}
	}
	if err := a.ended(ctx, true); err != nil {
		return false, err
	}
	wait, _ := a.remaining()
	if len(a.plan.Waits) > 0 {
		wait = longPause
	}
	if wait <= 0 {
		return true, nil
	}
	if !a.settling && len(a.plan.Waits) == 0 {
		a.settling = true
		a.tell(Event{Step: Settling})
	}
	a.waits = true
	return false, a.e.projects.wait(ctx, a.project, a.told, wait)
}

// unsettled is the error when ctx ends first. At a timeout it quotes unhealthy
// services, whose output is gone after a rollback.
func (a *applying) unsettled(ctx context.Context) error {
	_, missing := a.remaining()
	for _, w := range a.plan.Waits {
		missing = append(missing, w.String())
	}
	said := ""
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), quoteTimeout)
		defer cancel()
		for _, s := range a.wanted.Services {
			c := a.last.container(s.Container)
			if c.active() && c.Health.State != "" && c.Health.State != health.Healthy {
				said += fmt.Sprintf("; %s%s", s.Replica, a.lastOutput(reading, c.ID))
			}
		}
	}
	return fail(Timeout, a.project, fmt.Errorf("cannot wait until it settles: %w (%s)%s", ctx.Err(), strings.Join(missing, "; "), said))
}

// rest leaves a service as it is from now on if all its dependents can do without it.
func (r *run) rest(id string) bool {
	s := r.wanted.service(id)
	s.Resting = s.Resting || r.optional(s.Service)
	return s.Resting
}

// optional tells whether a service has dependents and none of them requires it.
func (r *run) optional(service string) bool {
	optional := false
	for _, s := range r.wanted.Services {
		for _, d := range s.DependsOn {
			if d.Service == service && d.Required {
				return false
			}
			optional = optional || d.Service == service
		}
	}
	return optional
}

// ended returns an error if a service ended during start-up, at once if its code is not 0
// (PKG-13), or is unhealthy. When idle, that includes services this run did not start:
// nothing is left to do that may make them well.
func (a *applying) ended(ctx context.Context, idle bool) error {
	for _, s := range a.wanted.Services {
		c := a.last.container(s.Container)
		if c == nil || s.Resting || a.starts[c.ID] == 0 && !(idle && c.Health.Probed.After(a.begun)) {
			continue
		}
		starts := a.starts[c.ID]
		var failed *Error
		switch {
		case c.State == Stopped && c.ExitCode != 0:
			failed = &Error{Code: Exited, Object: c.Service, Err: fmt.Errorf("ended with code %d during start-up%s", c.ExitCode, a.lastOutput(ctx, c.ID))}
		case c.State == Stopped && starts >= maxStarts:
			failed = &Error{Code: Exited, Object: c.Service, Err: fmt.Errorf("ended %d times during start-up%s", starts, a.lastOutput(ctx, c.ID))}
		case c.State == Created && starts >= maxStarts:
			failed = &Error{Code: StartFailed, Object: c.Service, Err: fmt.Errorf("its shim died %d times during start-up", starts)}
		case c.active() && c.Health.State == health.Unhealthy:
			failed = &Error{Code: Unhealthy, Object: c.Service, Err: fmt.Errorf("is unhealthy: its check ended with code %d%s; the service%s",
				c.Health.Code, quote(c.Health.Output), a.lastOutput(ctx, c.ID))}
		default:
			continue
		}
		if !a.rest(c.ID) {
			return failed
		}
	}
	return nil
}

// remaining is how long to wait, and for what; 0 when all have settled and are healthy.
func (a *applying) remaining() (longest time.Duration, what []string) {
	for _, s := range a.wanted.Services {
		c := a.last.container(s.Container)
		var wait time.Duration
		switch {
		case !c.active() || s.Resting:
			continue
		case c.State == Unresponsive: // no event says that its shim responds again
			wait = unresponsiveLook
			what = append(what, fmt.Sprintf("%s does not respond", s.Replica))
		case c.Started.IsZero(): // it ended between two looks; its exit is about to be known
			wait = 50 * time.Millisecond
		case c.Health.State != "" && c.Health.State != health.Healthy:
			wait = longPause
			what = append(what, fmt.Sprintf("%s is %s", s.Replica, c.Health.State))
		default:
			wait = a.settle - time.Since(c.Started)
		}
		longest = max(longest, wait)
	}
	return longest, what
}

// tidy deletes new containers that never ran and have a former one, with their networks.
func (r *run) tidy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTimeout)
	defer cancel()
	if err := r.find(ctx); err != nil {
		return // the next change does it
	}
	for _, c := range r.found {
		_, fresh := r.configs[c.ID]
		former := slices.ContainsFunc(r.found, func(o container.Container) bool { return o.ID != c.ID && memberOf(o) == memberOf(c) })
		if !fresh || !former || c.State != container.Created {
			continue
		}
		replica := seatOf(c).Replica
		if err := r.do(ctx, Step{Kind: DeleteContainer, Replica: replica, Container: c.ID}); err != nil {
			r.e.o.Logger.Warn("cannot delete a container that never ran", "project", r.project, "service", replica.Service, "error", err)
		}
	}
	r.e.places.unclaim(r.project)
	if err := r.e.places.sweep(ctx, ""); err != nil {
		r.e.o.Logger.Warn("cannot remove leftovers", "project", r.project, "error", err)
	}
}

func (r *run) lastOutput(ctx context.Context, id string) string {
	var out ending
	for range 50 { // the shim may still be copying, and the machine be busy
		out = nil
		if err := log.Read(ctx, r.e.containers.LogPath(id), log.Options{Tail: lastLines}, &out); err == nil && len(out) > 0 {
			break
		}
		pause(ctx, 20*time.Millisecond)
	}
	return quote(string(out))
}

// ending is a writer that keeps the end, a little more than an error quotes.
type ending []byte

func (e *ending) Write(p []byte) (int, error) {
	*e = append(*e, p...)
	*e = (*e)[max(0, len(*e)-2*lastBytes):]
	return len(p), nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
