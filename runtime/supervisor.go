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
	s := &supervisor{e: e, missed: true, turns: make(chan struct{}, abreast)}
	defer s.working.Wait()
	e.projects.supervise(func(p *project) { s.working.Go(func() { s.work(ctx, p) }) })
	defer e.projects.supervise(nil)
	e.projects.listen()
	beside.Go(func() {
		s.keep(ctx, "watch the network", func() error { return e.networks.Run(ctx, func() { e.projects.heard("") }) })
	})
	beside.Go(func() { s.keep(ctx, "answer DNS queries", func() error { return e.networks.Serve(ctx) }) })
	beside.Go(func() {
		s.keep(ctx, "watch shims", func() error { return e.containers.WatchShims(ctx, e.projects.heard) })
	})
	beside.Go(func() { s.removeLeftovers(ctx) })
	defer cancel()

	again := time.NewTimer(0)
	defer again.Stop()
	files := time.NewTicker(refreshEvery)
	defer files.Stop()
	for {
		e.busy.Store(nil)
		work := func() {
			if wait := s.look(ctx); wait > 0 {
				again.Reset(wait)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-files.C:
			work = e.networks.RefreshFiles
		case <-again.C:
		case <-e.projects.unknown.poked:
		}
		now := time.Now()
		e.busy.Store(&now)
		work()
	}
}

// keep does again, after a while, what ended before ctx did.
func (s *supervisor) keep(ctx context.Context, what string, do func() error) {
	for failures := 0; ctx.Err() == nil; {
		pause(ctx, s.try(ctx, &failures, do, "cannot "+what))
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

// removeLeftovers removes what a former process left. It harms nobody: containers come
// first, whatever happens here.
func (s *supervisor) removeLeftovers(ctx context.Context) {
	said := ""
	for failures := 1; ctx.Err() == nil; failures++ {
		err := contain.Call(func() error {
			return errors.Join(s.e.places.sweep(ctx, ""), s.e.containers.RemoveLeftovers(ctx))
		})
		if err == nil {
			return
		}
		if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			s.complain("cannot remove leftovers", err)
		}
		pause(ctx, delay(failures, rand.Float64()))
	}
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
	missed   bool // the next look has to be at everything
	failures int  // looks in a row that failed

	working sync.WaitGroup
	turns   chan struct{} // bounds how many projects are brought back at the same time
}

// tended is what is remembered of a project between two looks of its worker.
type tended struct {
	seen     map[string]ObservedContainer // by id, the last time; nil: not since a change
	failures int                          // in a row, other than of one container
	rest     time.Time                    // not to be tended before, after failures
}

// look has those projects tended whose containers something has happened to, and does
// not wait for them: one that waits for something keeps no other from being brought back.
// Where that fails, the next look is at everything, after a wait.
func (s *supervisor) look(ctx context.Context) (wait time.Duration) {
	return s.try(ctx, &s.failures, func() error {
		containers := s.e.projects.unknown.take()
		all := s.missed || containers[""]
		s.missed = true
		concerned, err := s.concerned(ctx, containers, all)
		if err != nil {
			return err
		}
		s.e.projects.tellFound(slices.Sorted(maps.Keys(concerned)), all)
		s.missed = false
		return nil
	}, "cannot supervise containers")
}

// concerned are the projects of containers, or of all.
func (s *supervisor) concerned(ctx context.Context, containers map[string]bool, all bool) (map[string]bool, error) {
	if all {
		return s.e.containers.Projects(ctx)
	}
	found := make(map[string]bool)
	for id := range containers {
		owner, err := s.e.containers.ProjectOf(ctx, id)
		if err != nil {
			return nil, err
		}
		if owner != "" { // else it is not ours, or whoever deleted it tells of its project
			found[owner] = true
		}
	}
	return found, nil
}

// work tends a project as often as there is news of it.
func (s *supervisor) work(ctx context.Context, p *project) {
	for s.e.projects.next(ctx, p) {
		s.takeTurn(ctx, p)
	}
}

// takeTurn tends a project when it is its turn.
func (s *supervisor) takeTurn(ctx context.Context, p *project) {
	select {
	case s.turns <- struct{}{}:
	case <-ctx.Done():
		return
	}
	release := sync.OnceFunc(func() { <-s.turns })
	defer release()
	defer time.AfterFunc(slowAfter, release).Stop()
	ctx, done, ok := s.e.projects.tend(ctx, p)
	if !ok {
		return // whoever has it lets it go
	}
	done(s.tend(ctx, p))
}

// tend brings one project back to what its labels say, and returns when it has
// to be tended again; zero when nothing is waiting.
func (s *supervisor) tend(ctx context.Context, p *project) time.Time {
	if time.Now().Before(p.rest) {
		return p.rest
	}
	var due time.Time
	wait := s.try(ctx, &p.failures, func() (err error) {
		due, err = s.restore(ctx, p)
		return err
	}, "cannot restore project", "project", p.name)
	if wait > 0 {
		p.rest = time.Now().Add(wait)
		return p.rest
	}
	return due
}

// restore executes the plans that lead to what the labels say.
func (s *supervisor) restore(ctx context.Context, p *project) (due time.Time, err error) {
	g := &restoring{run: &run{e: s.e, project: p.name}, p: p}
	s.e.projects.with(p.name, func(p *project) {
		if p.more {
			p.known, p.more = nil, false
		}
		g.known, g.made = p.known, p.made
	})
	defer s.e.projects.with(p.name, func(p *project) {
		p.made = g.made
		p.made.ports = g.made.ports && !g.unpublished
	})
	err = g.converge(ctx, g)
	return g.due, err
}

// restoring is the goal of a worker: what the labels of the containers say.
type restoring struct {
	*run
	p           *project
	due         time.Time // when the worker has to look again
	unpublished bool      // ports could not be published
}

// want wants what the labels of the containers say. Some rest until they are due by their
// restart policy.
func (g *restoring) want(context.Context) (done bool, err error) {
	g.e.projects.with(g.project, func(p *project) { g.known = p.known })
	g.compare()
	g.due = time.Time{}
	if len(g.found) == 0 {
		g.e.tendHealth(g.project, nil)
		g.e.projects.noteWaits(g.project, nil)
		return true, nil
	}
	chosen := current(g.found)
	g.place = recorded(chosen)
	g.wanted = Wanted{AsRecorded: true}
	for _, n := range g.place.networks() {
		g.wanted.Networks = append(g.wanted.Networks, n.Name)
	}
	for _, c := range chosen {
		service := WantedService{
			Replica: seatOf(c).Replica, Container: c.ID,
			DependsOn: c.Labels.DependsOn,
			Joins:     seatOf(c).joins(),
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
	g.e.projects.with(g.project, func(p *project) { failures, due = p.history(c.ID).note(*o, c.Labels.Restart) })
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
	if slices.ContainsFunc(g.plan.Steps(), func(s Step) bool { return s.Kind == StartContainer }) {
		g.e.projects.with(g.project, g.e.projects.tellWaiting)
	}
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
	p, now := g.p, g.last.Containers
	changed := false
	for id, before := range p.seen {
		c := g.last.container(id)
		changed = changed || c == nil || before.active() != c.active() || before.active() && c.Pid != before.Pid ||
			(c.State == Unresponsive) != (before.State == Unresponsive) || c.Health.State != before.Health.State
	}
	for _, c := range now {
		before, known := p.seen[c.ID]
		if known && !before.active() {
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
	p.seen = make(map[string]ObservedContainer, len(now))
	for _, c := range now {
		p.seen[c.ID] = c
	}
}
