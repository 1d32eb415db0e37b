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

	// slowAfter is when a project that waits for a file server or hook gives its turn to others.
	slowAfter = 5 * time.Second

	// unresponsiveLook is the interval of looks at a project whose shim does not respond.
	unresponsiveLook = 5 * time.Second
)

// Run supervises the containers until ctx is done: it restarts them by their restart policy
// and after a reboot, and answers their DNS queries. It leaves alone projects that Apply or
// Remove works on.
//
// It looks at everything when it starts and whenever it may have missed an event; at one
// project when a task of it ended, the health of a container changed, a restart is due, or
// something was started that it may wait for. It repairs rules, links and mounts of ours
// that others change or destroy. Idle, it only looks every few seconds at the DNS settings
// of the device.
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
		// Leftovers do no harm: containers do not wait for this.
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

// keep retries do after increasing waits until it succeeds. It logs a repeated failure once.
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

// try counts and logs failures of do, except once ctx ended; wait: when to retry, 0 on success.
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

// complain logs an error of Run, and reports a panic, which no caller sees.
func (s *supervisor) complain(text string, err error, attrs ...any) {
	s.e.o.Logger.Warn(text, append(attrs, "error", err)...)
	var p *contain.Panic
	if errors.As(err, &p) {
		s.e.o.Contained(text, p)
	}
}

// Busy is how long Run has been at work; 0 while it waits for news. Slow work is left to others.
func (e *Engine) Busy() time.Duration {
	if since := e.busy.Load(); since != nil {
		return time.Since(*since)
	}
	return 0
}

// Back is closed once Run has tried to restore everything it found when it began.
// Containers that wait for others, or cannot be started, may follow later.
func (e *Engine) Back() <-chan struct{} { return e.projects.back }

// supervisor finds the projects of events and runs their workers.
type supervisor struct {
	e        *Engine
	failures int // looks in a row that failed

	working sync.WaitGroup
	turns   *limit.Limiter // bounds how many projects are brought back at the same time
}

// look starts workers for the projects whose containers something has happened to, without
// waiting for them: a project that waits does not hold up others. If it fails, it looks at
// everything after a wait.
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
			if owner != "" { // else it is not ours, or the change that deleted it tells its project
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

func (s *supervisor) work(ctx context.Context, p *project) {
	if turn, err := s.turns.Acquire(ctx, limit.Key{}, nil, nil); err == nil { // else ctx has ended
		defer turn.Release()
		defer time.AfterFunc(slowAfter, turn.Release).Stop()
	}
	s.e.projects.tend(ctx, p, func(ctx context.Context) time.Time { return s.tend(ctx, p) })
}

// tend restores a project as labelled. due is when to tend it again; zero: only with news.
func (s *supervisor) tend(ctx context.Context, p *project) (due time.Time) {
	g := &restoring{run: &run{e: s.e, project: p.name}, p: p}
	wait := s.try(ctx, &p.failures, func() error { return g.restore(ctx) }, "cannot restore project", "project", p.name)
	if wait > 0 {
		return time.Now().Add(wait)
	}
	return g.due
}

// restoring is the goal of a worker: the project as the labels of its containers say.
type restoring struct {
	*run
	p           *project
	due         time.Time // when the worker has to look again
	unpublished bool      // ports could not be published
}

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

// want takes the wanted services from the labels. Some rest until their restart is due.
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

// rests tells whether a container is left alone for now, and when to look at it again.
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

// carriedOut tolerates failures that affect single services only.
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

// sooner is the earlier of two times; zero is no time.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// compare reports containers that, since the last look, stopped, started, died, vanished or
// changed health, and shims that stopped or started responding. What Apply and Remove do is
// not reported.
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
