package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
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
	w := e.news.watch(ctx, supervisorTopics)
	defer w.join()
	var beside sync.WaitGroup
	defer beside.Wait()
	s := &supervisor{e: e, news: w.agenda, projects: make(map[string]*tended), containers: make(map[string]string), turns: make(chan struct{}, abreast), done: make(chan struct{}, 1)}
	s.missed = true
	defer s.tending.Wait()
	beside.Go(func() {
		s.keep(ctx, "watch the network", func() error { return e.networks.Run(ctx, w.addAll) })
	})
	beside.Go(func() { s.keep(ctx, "answer DNS queries", func() error { return e.networks.Serve(ctx) }) })
	beside.Go(func() {
		s.keep(ctx, "watch shims", func() error { return e.containers.WatchShims(ctx, e.news.tellContainer) })
	})
	beside.Go(func() { s.removeLeftovers(ctx) })
	defer cancel()

	due := time.NewTimer(0)
	defer due.Stop()
	files := time.NewTimer(refreshEvery)
	defer files.Stop()
	ticking := true
	for {
		e.busy.ends()
		select {
		case <-ctx.Done():
			return nil
		case <-files.C:
			e.busy.begins()
			e.networks.RefreshFiles()
			if ticking = len(s.projects) > 0; ticking {
				files.Reset(refreshEvery)
			}
			continue
		case <-s.done:
			s.forgetGone()
			s.noteBack()
			s.alarm(due)
			continue
		case <-due.C:
		case <-w.poked:
		}
		e.busy.begins()
		s.look(ctx)
		s.noteBack() // there may be nothing to tend
		s.alarm(due)
		if !ticking && len(s.projects) > 0 {
			ticking = true
			files.Reset(refreshEvery)
		}
	}
}

// keep does again, after a while, what ended before ctx did.
func (s *supervisor) keep(ctx context.Context, what string, do func() error) {
	for failures := 1; ctx.Err() == nil; failures++ {
		if err := contain.Call(do); err != nil && ctx.Err() == nil {
			s.complain("cannot "+what, err)
		}
		pause(ctx, delay(failures, rand.Float64()))
	}
}

// removeLeftovers removes what a former process left and takes long to remove.
func (s *supervisor) removeLeftovers(ctx context.Context) {
	said := ""
	for failures := 1; ctx.Err() == nil; failures++ {
		err := contain.Call(func() error { return s.e.containers.RemoveLeftovers(ctx) })
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
func (e *Engine) Busy() time.Duration { return e.busy.lasts() }

// spell measures how long one piece of work has been going on.
type spell struct {
	epoch time.Time    // before the first one
	since atomic.Int64 // when it began, since epoch; 0: nothing is done
}

func (s *spell) begins() { s.since.Store(max(int64(time.Since(s.epoch)), 1)) }

func (s *spell) ends() { s.since.Store(0) }

func (s *spell) lasts() time.Duration {
	since := s.since.Load()
	if since == 0 {
		return 0
	}
	return time.Since(s.epoch) - time.Duration(since)
}

// Back is closed once Run has tried to bring everything back that it found when
// it began. Containers that wait for others, and those that cannot be started,
// may come later.
func (e *Engine) Back() <-chan struct{} { return e.back }

// supervisor is what Run remembers between two looks.
type supervisor struct {
	e        *Engine
	news     *agenda
	projects map[string]*tended
	swept    bool      // leftovers of former processes were looked for
	missed   bool      // the next look has to be at everything
	looked   bool      // everything was found once
	failures int       // looks in a row that failed
	retry    time.Time // when to look again after a failure; zero: the last look succeeded

	tending sync.WaitGroup
	turns   chan struct{} // bounds how many projects are brought back at the same time
	done    chan struct{} // poked when one was
	mu      sync.Mutex    // guards what its projects say of it

	containers map[string]string // projects by the ids of their containers, as the last looks found them; guarded by mu
}

// tended is what the supervisor knows of one project. While it is busy, all of it
// is its goroutine's, save what the mutex guards.
type tended struct {
	made     made                         // brought up to date since this process started
	seen     map[string]ObservedContainer // by id, the last time
	known    []string                     // ids of all its containers; nil: not known
	changes  int                          // the count of its last change when seen was
	failures int                          // in a row, other than of one container
	rest     time.Time                    // not to be tended before, after failures
	gone     bool                         // it has no containers any more

	busy  bool      // it is being tended; guarded by supervisor.mu
	again bool      // there is news since; guarded by supervisor.mu
	more  bool      // it may have more containers than known; guarded by supervisor.mu
	due   time.Time // when it is to be tended again, zero when nothing is waiting; guarded by supervisor.mu
}

// look has those projects tended that something has happened to. Where that fails,
// the next look is at everything.
func (s *supervisor) look(ctx context.Context) {
	if err := contain.Call(func() error { return s.tendConcerned(ctx) }); err != nil {
		if ctx.Err() == nil {
			s.complain("cannot supervise containers", err)
		}
		s.failures++
		s.missed, s.retry = true, time.Now().Add(delay(s.failures, rand.Float64()))
		return
	}
	s.failures, s.retry = 0, time.Time{}
}

// alarm sets a timer to the next look: that of the first project that is due and not
// being tended, or a repetition if the last look failed.
func (s *supervisor) alarm(timer *time.Timer) {
	next := s.next()
	if next.IsZero() {
		timer.Stop()
		return
	}
	timer.Reset(max(0, time.Until(next)))
}

// next is when the next look is due without any news; zero: at no time.
func (s *supervisor) next() (next time.Time) {
	if !s.retry.IsZero() { // whatever is due would fail as well
		return s.retry
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.projects {
		if !t.busy {
			next = sooner(next, t.due)
		}
	}
	return next
}

// noteBack tells, once, that everything was tended that was found first.
func (s *supervisor) noteBack() {
	if !s.looked {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.projects {
		if t.busy {
			return
		}
	}
	s.e.once.Do(func() { close(s.e.back) })
}

// sooner is the earlier one of two times, of which zero is none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func (s *supervisor) forgetGone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.projects, func(_ string, t *tended) bool { return !t.busy && t.gone })
}

// tendConcerned has the projects tended that something has happened to, and does
// not wait for it: one that waits for something keeps no other from being brought
// back.
func (s *supervisor) tendConcerned(ctx context.Context) error {
	news := s.news.take()
	var names concerned
	var err error
	if s.missed || news.all {
		names, err = s.everything(ctx)
	} else {
		names, err = s.concerned(ctx, news)
	}
	if err != nil {
		return err
	}
	s.missed = false
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for name, t := range s.projects {
		if !t.busy && !t.due.IsZero() && !now.Before(t.due) {
			names.add(name, false)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		t := s.projects[name]
		if t == nil {
			t = &tended{}
			s.projects[name] = t
		}
		t.more = t.more || names[name]
		if t.busy {
			t.again = true
			continue
		}
		t.busy = true
		s.tending.Go(func() { s.attend(ctx, name, t) })
	}
	return nil
}

// concerned are projects to be looked at, by name. True says that one may have
// containers that are not known.
type concerned map[string]bool

func (c concerned) add(project string, more bool) { c[project] = c[project] || more }

// everything names all projects: those that have containers, and those that had
// some.
func (s *supervisor) everything(ctx context.Context) (concerned, error) {
	found, err := s.e.containers.Projects(ctx)
	if err != nil {
		return nil, err
	}
	if !s.swept {
		// Leftovers harm nobody: containers come first, whatever happens here.
		if err := s.e.places.sweepNetworks(ctx); err != nil && ctx.Err() == nil {
			s.e.o.Logger.Warn("cannot remove leftovers", "error", err)
		}
		s.swept = true
	}
	names := concerned(found)
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.projects {
		names.add(name, true)
	}
	s.looked = true
	return names, nil
}

// concerned names the projects that items are about.
func (s *supervisor) concerned(ctx context.Context, i items) (concerned, error) {
	names := make(concerned)
	for name := range i.projects {
		names.add(name, false)
	}
	for id := range i.containers {
		s.mu.Lock()
		found, known := s.containers[id]
		s.mu.Unlock()
		if known {
			names.add(found, false)
			continue
		}
		project, err := s.e.containers.ProjectOf(ctx, id)
		if err != nil {
			return nil, err
		}
		if project != "" { // else it is not ours, or whoever deleted it tells of its project
			names.add(project, true)
		}
	}
	return names, nil
}

func (s *supervisor) noteFound(project string, found []container.Container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.containers, func(_, of string) bool { return of == project })
	for _, c := range found {
		s.containers[c.ID] = project
	}
}

// attend tends a project as often as there is news of it.
func (s *supervisor) attend(ctx context.Context, name string, t *tended) {
	defer poke(s.done)
	for {
		due := s.takeTurn(ctx, name, t)
		s.mu.Lock()
		if t.again && ctx.Err() == nil {
			t.again = false
			s.mu.Unlock()
			continue
		}
		t.busy, t.again, t.due = false, false, due
		s.mu.Unlock()
		return
	}
}

// takeTurn tends a project when it is its turn.
func (s *supervisor) takeTurn(ctx context.Context, name string, t *tended) (due time.Time) {
	select {
	case s.turns <- struct{}{}:
	case <-ctx.Done():
		return time.Time{}
	}
	release := sync.OnceFunc(func() { <-s.turns })
	defer release()
	defer time.AfterFunc(slowAfter, release).Stop()
	ctx, unlock, ok := s.e.turns.tend(ctx, name)
	if !ok {
		return time.Time{} // whoever has it pokes at the end
	}
	defer unlock()
	return s.tend(ctx, name, t)
}

// tend brings one project back to what its labels say, and returns when it has
// to be tended again; zero when nothing is waiting.
func (s *supervisor) tend(ctx context.Context, project string, t *tended) time.Time {
	if time.Now().Before(t.rest) {
		return t.rest
	}
	var due time.Time
	err := contain.Call(func() (err error) {
		due, err = s.restore(ctx, project, t)
		return err
	})
	switch {
	case err == nil:
		t.failures, t.rest = 0, time.Time{}
		return due
	case ctx.Err() != nil:
		return time.Time{}
	}
	s.complain("cannot restore project", err, "project", project)
	t.failures++
	t.rest = time.Now().Add(delay(t.failures, rand.Float64()))
	return t.rest
}

// restore executes the plans that lead to what the labels say.
func (s *supervisor) restore(ctx context.Context, project string, t *tended) (due time.Time, err error) {
	r := &run{e: s.e, project: project, made: t.made}
	unpublished := false
	defer func() {
		t.made = r.made
		t.made.ports = r.made.ports && !unpublished
	}()
	if change := s.e.changed.of(project); t.changes != change.count {
		// Apply or Remove was here. One that failed half way made nothing.
		t.changes, t.seen, t.known, r.made = change.count, nil, nil, change.made.clone()
	}
	s.mu.Lock()
	if t.more {
		t.known, t.more = nil, false
	}
	s.mu.Unlock()
	r.known = t.known
	t.gone = false
	for range maxLooks {
		mark := s.e.news.waitMark()
		if err := r.find(ctx); err != nil {
			return time.Time{}, err
		}
		r.known = make([]string, 0, len(r.found))
		for _, c := range r.found {
			r.known = append(r.known, c.ID)
		}
		t.known = r.known
		s.noteFound(project, r.found)
		s.e.histories.forget(project, r.found)
		if len(r.found) == 0 {
			s.compare(project, t, nil)
			s.e.tendHealth(project, nil)
			s.e.news.noteWaits(project, nil, mark)
			s.e.changed.forget(project, t.changes)
			t.gone = true
			return time.Time{}, nil
		}
		chosen := current(r.found)
		r.place = recorded(chosen)
		r.volumes = recordedVolumes(chosen)
		r.wanted, due = s.wanted(project, chosen)
		observed, err := r.observed(ctx)
		if err != nil {
			return time.Time{}, err
		}
		s.compare(project, t, observed.Containers)
		plan := PlanFor(observed, r.wanted)
		stale := s.e.news.noteWaits(project, plan.Waits, mark)
		if len(plan.Groups) == 0 && stale {
			continue
		}
		if len(plan.Groups) == 0 {
			if unpublished {
				due = sooner(due, time.Now().Add(maxDelay))
			}
			return due, nil
		}
		if slices.ContainsFunc(plan.Steps(), Step.changesNetwork) {
			s.e.changed.forgetSeats(project)
		}
		failures := r.carryOut(ctx, plan)
		if slices.ContainsFunc(plan.Steps(), func(s Step) bool { return s.Kind == StartContainer }) {
			s.e.news.tellWaiting(project)
		}
		for _, f := range failures {
			switch {
			case ctx.Err() != nil:
				return time.Time{}, f.err
			case f.step.Kind == StartContainer:
				// Its history makes the next attempt wait.
				s.e.o.Logger.Warn("cannot start service", "project", project, "service", f.step.Replica.Service, "error", f.err)
			case f.step.Kind == EnsureVolume:
				// Only those who mount it cannot start, and say so.
				s.e.o.Logger.Warn("cannot create volume", "project", project, "volume", f.step.Volume, "error", f.err)
				set(&r.passed, f.step.Volume)
			case f.step.Kind == SyncPorts:
				// Services that cannot be reached from outside are better than none.
				s.e.o.Logger.Warn("cannot publish ports", "project", project, "error", f.err)
				unpublished, r.made.ports = true, true
			default:
				return time.Time{}, f.err
			}
		}
	}
	return time.Time{}, fmt.Errorf("not done after %d attempts", maxLooks)
}

// wanted is what the labels of the containers say, and when the first of those
// that rest now is due.
func (s *supervisor) wanted(project string, chosen []container.Container) (w Wanted, due time.Time) {
	w.AsRecorded = true
	now := time.Now()
	for _, n := range recorded(chosen).networks() {
		w.Networks = append(w.Networks, n.Name)
	}
	for _, c := range chosen {
		o := s.e.observe(c)
		failures, again := s.e.histories.note(project, o, c.Labels.Restart)
		service := WantedService{
			Replica: o.Replica(), Container: c.ID,
			DependsOn: c.Labels.DependsOn,
			Joins:     seatOf(c).joins(),
			Hooks:     len(c.Labels.PostStart) > 0,
		}
		for _, v := range c.Labels.Volumes {
			service.Volumes = append(service.Volumes, v.Name)
		}
		switch o.State {
		case Stopped:
			waits := c.Labels.Restart.After(c.ExitCode, failures-1)
			service.Resting = !waits || now.Before(again)
			if waits && service.Resting {
				due = sooner(due, again)
			}
		case Created: // the task has gone, with its shim or in a reboot
			service.Resting = now.Before(again)
			if service.Resting {
				due = sooner(due, again)
			}
		case Unresponsive: // no event says that a shim which was only late has answered
			due = sooner(due, now.Add(unresponsiveLook))
		}
		w.Services = append(w.Services, service)
	}
	return w, due
}

func recordedVolumes(chosen []container.Container) map[string]container.Volume {
	own := make(map[string]container.Volume)
	for _, c := range chosen {
		for _, v := range c.Labels.Volumes {
			if v.Project == "" {
				own[v.Name] = v
			}
		}
	}
	return own
}

// compare tells listeners when, since the last look, a container stopped, was started
// again, died, vanished, became healthy or unhealthy, or its shim stopped or started
// responding.
// What Apply and Remove do is not told.
func (s *supervisor) compare(project string, t *tended, now []ObservedContainer) {
	changed := false
	for id, before := range t.seen {
		i := slices.IndexFunc(now, func(c ObservedContainer) bool { return c.ID == id })
		if i < 0 || before.active() != now[i].active() || before.active() && now[i].Pid != before.Pid ||
			(now[i].State == Unresponsive) != (before.State == Unresponsive) || now[i].Health.State != before.Health.State {
			changed = true
		}
	}
	for _, c := range now {
		before, known := t.seen[c.ID]
		if known && !before.active() {
			continue
		}
		switch c.State {
		case Stopped:
			changed = true
			s.e.o.Logger.Warn("service ended", "project", project, "service", c.Service, "code", c.ExitCode)
		case Created:
			changed = true
			s.e.o.Logger.Info("service disappeared", "project", project, "service", c.Service)
		}
	}
	if changed {
		s.e.changes.addProject(project)
	}
	t.seen = make(map[string]ObservedContainer, len(now))
	for _, c := range now {
		t.seen[c.ID] = c
	}
}
