package runtime

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/limit"
)

const (
	refreshEvery = 5 * time.Second // how often the host's resolver is looked at

	// slowAfter is when a project that is brought back makes room for others: it
	// may wait for a file server or a hook, and takes no processor meanwhile.
	slowAfter = 5 * time.Second

	// unresponsiveLook is when a project is looked at again whose shim does not answer.
	unresponsiveLook = 5 * time.Second
)

// Run supervises the containers until ctx is done: it restarts what stops by
// its restart policy, brings everything back after a reboot, and answers questions
// for names. Projects that Apply or Remove works on are
// left alone meanwhile.
//
// It looks at everything when it starts, and whenever an event may have been
// missed; at one project when an event says that a task of it ended, when the
// health of its container changed, when a restart of it is due, and when something
// was started that it may wait for. When somebody else changes the rules of the
// kernel, or destroys links and mounts of ours, it repairs them. It does not look
// when nothing happens, save every few seconds at what the device resolves names with.
func (e *Engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(e.within(ctx))
	var beside sync.WaitGroup
	defer beside.Wait()
	s := &supervisor{e: e, turns: limit.New(0, limit.Bound{Most: abreast, Counts: func(_, _ limit.Key) bool { return true }})}
	defer s.working.Wait()
	e.projects.supervise(func(p *project) { s.working.Go(func() { s.work(ctx, p) }) })
	defer e.projects.supervise(nil)
	e.projects.listen()
	for what, do := range map[string]func() error{
		"watch the network":  func() error { return e.networks.Run(ctx, func() { e.projects.heard("") }) },
		"answer DNS queries": func() error { return e.networks.Serve(ctx) },
		"watch shims":        func() error { return e.containers.WatchShims(ctx, e.projects.heard) },
		// What a former process left harms nobody: containers come first, whatever happens to this.
		"remove leftovers": func() error { return errors.Join(e.places.sweep(ctx, ""), e.containers.RemoveLeftovers(ctx)) },
	} {
		beside.Go(func() { s.keep(ctx, what, do) })
	}
	defer cancel()

	files := time.NewTicker(refreshEvery)
	defer files.Stop()
	for {
		e.busy.Store(nil)
		work := e.networks.RefreshFiles
		select {
		case <-ctx.Done():
			return nil
		case <-files.C:
		case <-e.projects.unknown.poked:
			work = func() { s.look(ctx) }
		}
		now := time.Now()
		e.busy.Store(&now)
		work()
	}
}

// keep does again what fails before ctx ends, after ever longer waits. It logs the same
// failure once.
func (s *supervisor) keep(ctx context.Context, what string, do func() error) {
	said := ""
	for failures := 1; ctx.Err() == nil; failures++ {
		err := contain.Call(do)
		if err == nil {
			return
		}
		if ctx.Err() == nil && (err.Error() != said || errors.As(err, new(*contain.Panic))) {
			said = err.Error()
			s.complain("cannot "+what, err)
		}
		pause(ctx, delay(failures, rand.Float64()))
	}
}

// try does something, and counts and logs its failures. Where it failed, it is to be
// done again after the wait; else wait is 0. What fails because ctx ended has not failed.
func (s *supervisor) try(ctx context.Context, failures *int, do func() error, text string, attrs ...any) (wait time.Duration) {
	err := contain.Call(do)
	switch {
	case err == nil:
		*failures = 0
		return 0
	case ctx.Err() != nil:
		return 0
	}
	s.complain(text, err, attrs...)
	*failures++
	return delay(*failures, rand.Float64())
}

// complain logs an error of Run, and tells of it if it is a panic: nobody else does.
func (s *supervisor) complain(text string, err error, attrs ...any) {
	s.e.o.Logger.Warn(text, append(attrs, "error", err)...)
	var p *contain.Panic
	if errors.As(err, &p) {
		s.e.o.Contained(text, p)
	}
}

// Busy is for how long Run has been doing what it does now; 0 while it waits for
// news. What takes long, it leaves to others.
func (e *Engine) Busy() time.Duration {
	if since := e.busy.Load(); since != nil {
		return time.Since(*since)
	}
	return 0
}

// Back is closed once Run has tried to bring everything back that it found when
// it began. Containers that wait for others, and those that cannot be started,
// may come later.
func (e *Engine) Back() <-chan struct{} { return e.projects.back }

// supervisor finds out to which projects something has happened, and has workers
// bring them back.
type supervisor struct {
	e        *Engine
	failures int // looks in a row that failed

	working sync.WaitGroup
	turns   *limit.Limiter // bounds how many projects are brought back at the same time
}

// look has those projects tended whose containers something has happened to, and does
// not wait for them: one that waits for something keeps no other from being brought back.
// Where that fails, it is everything's turn after a wait.
func (s *supervisor) look(ctx context.Context) {
	projects := s.e.projects
	wait := s.try(ctx, &s.failures, func() error {
		containers := projects.unknown.take()
		if containers[""] {
			found, err := s.e.containers.Projects(ctx)
			if err == nil {
				projects.tellFound(found)
			}
			return err
		}
		for id := range containers {
			owner, err := s.e.containers.ProjectOf(ctx, id)
			if err != nil {
				return err
			}
			if owner != "" { // else it is not ours, or whoever deleted it tells of its project
				projects.with(owner, func(p *project) {
					p.more = true
					projects.tellLocked(p)
				})
			}
		}
		return nil
	}, "cannot supervise containers")
	if wait > 0 {
		time.AfterFunc(wait, func() { projects.unknown.add("") })
	}
}

// work tends a project when it is its turn.
func (s *supervisor) work(ctx context.Context, p *project) {
	if turn, err := s.turns.Acquire(ctx, limit.Key{}, nil, nil); err == nil { // else ctx has ended
		defer turn.Release()
		defer time.AfterFunc(slowAfter, turn.Release).Stop()
	}
	s.e.projects.tend(ctx, p, func(ctx context.Context) time.Time { return s.tend(ctx, p) })
}

// tend brings one project back to what its labels say, and returns when it has
// to be tended again; zero when nothing is waiting.
func (s *supervisor) tend(ctx context.Context, p *project) (due time.Time) {
	g := &restoring{run: &run{e: s.e, project: p.name}, p: p}
	wait := s.try(ctx, &p.failures, func() error { return g.restore(ctx) }, "cannot restore project", "project", p.name)
	if wait > 0 {
		return time.Now().Add(wait)
	}
	return g.due
}

// restoring is the goal of a worker: what the labels of the containers say.
type restoring struct {
	*run
	p           *project
	due         time.Time // when the worker has to look again
	unpublished bool      // ports could not be published
}

// restore executes the plans that lead to what the labels say.
func (g *restoring) restore(ctx context.Context) error {
	g.e.projects.with(g.project, func(p *project) {
		if !p.more {
			g.known = slices.Collect(maps.Keys(p.known))
		}
		p.more, g.made = false, p.made
	})
	defer g.e.projects.with(g.project, func(p *project) {
		p.made = g.made
		p.made.ports = g.made.ports && !g.unpublished
	})
	return g.converge(ctx, g)
}

// want wants what the labels of the containers say. Some rest until they are due by their
// restart policy.
func (g *restoring) want(context.Context) (done bool, err error) {
	g.e.projects.with(g.project, func(p *project) { g.known = slices.Collect(maps.Keys(p.known)) })
	g.compare()
	g.due = time.Time{}
	if len(g.found) == 0 {
		g.e.tendHealth(g.project, nil)
		g.e.projects.noteWaits(g.project, nil)
		return true, nil
	}
	chosen := current(g.found)
	g.wanted = Wanted{AsRecorded: true}
	for _, c := range chosen {
		service := WantedService{
			seat: seatOf(c), Container: c.ID,
			DependsOn: c.Labels.DependsOn,
			Hooks:     len(c.Labels.PostStart) > 0,
		}
		var due time.Time
		service.Resting, due = g.rests(c)
		g.due = sooner(g.due, due)
		g.wanted.Services = append(g.wanted.Services, service)
	}
	return false, nil
}

// rests tells whether a container is left as it is for now, and when to look at it again.
func (g *restoring) rests(c container.Container) (rests bool, due time.Time) {
	o := g.last.container(c.ID)
	var failures int
	g.e.projects.with(g.project, func(p *project) { failures, due = p.known[c.ID].note(*o, c.Labels.Restart) })
	switch {
	case o.State == Unresponsive: // no event says that a shim which was only late has answered
		return false, time.Now().Add(unresponsiveLook)
	case o.State == Stopped && !c.Labels.Restart.After(c.ExitCode, failures-1):
		return true, time.Time{}
	case (o.State == Stopped || o.State == Created) && time.Now().Before(due): // a task goes with its shim, or in a reboot
		return true, due
	}
	return false, time.Time{}
}

func (g *restoring) idle(context.Context) (done bool, err error) {
	if g.unpublished {
		g.due = sooner(g.due, time.Now().Add(maxDelay))
	}
	return true, nil
}

// carriedOut passes over what only some services cannot do without.
func (g *restoring) carriedOut(ctx context.Context, failed []failure) error {
	logger := g.e.o.Logger.With("project", g.project)
	for _, f := range failed {
		switch {
		case ctx.Err() != nil:
			return f.err
		case f.step.Kind == StartContainer:
			// Its history makes the next attempt wait.
			logger.Warn("cannot start service", "service", f.step.Replica.Service, "error", f.err)
		case f.step.Kind == SyncPorts:
			// Services that cannot be reached from outside are better than none.
			logger.Warn("cannot publish ports", "error", f.err)
			g.unpublished, g.made.ports = true, true
		default:
			return f.err
		}
	}
	return nil
}

// sooner is the earlier one of two times, of which zero is none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// compare tells listeners when, since the last look, a container stopped, was started
// again, died, vanished, became healthy or unhealthy, or its shim stopped or started
// responding.
// What Apply and Remove do is not told.
func (g *restoring) compare() {
	p, now := g.p, g.last
	changed := false
	for _, before := range p.seen.Containers {
		c := now.container(before.ID)
		changed = changed || c == nil || before.active() != c.active() || before.active() && c.Pid != before.Pid ||
			(c.State == Unresponsive) != (before.State == Unresponsive) || c.Health.State != before.Health.State
	}
	for _, c := range now.Containers {
		if before := p.seen.container(c.ID); before != nil && !before.active() {
			continue
		}
		switch c.State {
		case Stopped:
			changed = true
			g.e.o.Logger.Warn("service ended", "project", p.name, "service", c.Service, "code", c.ExitCode)
		case Created:
			changed = true
			g.e.o.Logger.Info("service disappeared", "project", p.name, "service", c.Service)
		}
	}
	if changed {
		g.e.changes.add(p.name)
	}
	p.seen = now
}
