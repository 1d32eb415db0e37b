package runtime

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/limit"
)

// endSoon is how long a change waits for the worker of the project to finish.
const endSoon = 5 * time.Second

// projects is what this process knows of projects, in memory only, and who works on them:
// changes, which are calls of Apply and Remove, and while Run runs a worker for each project
// that needs one.
//
// One lock guards all of it. settle decides under the lock, from what is noted under it,
// whether a worker begins: whatever happens to a project that has a worker, or is being
// changed, starts another one. Waiters wait for a channel that settle closes, and read it
// under the lock together with their condition.
type projects struct {
	events   events
	changing locks   // changes of one project come one after another
	unknown  *agenda // containers of which something was heard, and Run has still to find out their projects

	mu     sync.Mutex
	of     map[string]*project
	deafen func()         // ends what listen began; nil: it did not
	begin  func(*project) // starts the worker of a project; nil: Run does not run
	looked bool           // workers began for all that was there when Run began
	back   chan struct{}  // closed once all of those have come to rest
	isBack bool           // it is closed
	count  int            // of loads, so that no two are the same
}

// project is what is known of one project. projects.mu guards it, except seen and failures,
// which belong to the worker or change that has the project.
type project struct {
	name string

	changes int                // that work on it, or wait for that
	left    bool               // LeaveAlone names it
	news    bool               // something happened to it that no worker has seen yet
	told    int                // how often something happened to it
	alarm   *time.Timer        // is news when something is due; nil: nothing is
	worker  bool               // there is one
	end     context.CancelFunc // ends what the worker does; nil: it does nothing
	settled chan struct{}      // closed when any of these changes; nil: no waiter

	known map[string]*history // its containers, by id
	more  bool                // it may have others
	waits []Wait              // by the last plan
	stale bool                // they may have come since the last look began
	made  made                // by its last holder; an unfinished change does not count
	loads map[string]int      // by directory of an extracted package, projects.count when it was last loaded

	seen     Observed // by the last worker; without containers: there was none since a change
	failures int      // of workers in a row, other than of one container: news has to wait until it is due
}

func newProjects(e events) *projects {
	return &projects{
		events: e, changing: newLocks(), unknown: newAgenda(), back: make(chan struct{}), of: make(map[string]*project),
	}
}

// with calls do, which must not ask for mu, with mu held.
func (ps *projects) with(name string, do func(*project)) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.get(name)
	do(p)
	ps.settle(p)
}

// get needs mu. Its caller calls settle before it unlocks mu.
func (ps *projects) get(name string) *project {
	p := ps.of[name]
	if p == nil {
		p = &project{name: name, known: make(map[string]*history), loads: make(map[string]int)}
		ps.of[name] = p
	}
	return p
}

// isFree: no change works on the project or waits, and LeaveAlone does not name it.
func (p *project) isFree() bool { return p.changes == 0 && !p.left }

// isPressing: there is news that need not wait until a retry is due.
func (p *project) isPressing() bool { return p.news && (p.failures == 0 || p.alarm == nil) }

func (p *project) isForgotten() bool {
	return p.changes == 0 && !p.left && !p.worker && len(p.known) == 0 &&
		len(p.waits) == 0 && len(p.loads) == 0
}

// settle starts a worker with something to do, or forgets a project without any state. Call it
// after each change, before unlocking mu.
func (ps *projects) settle(p *project) {
	if p.settled != nil {
		close(p.settled)
		p.settled = nil
	}
	switch {
	case !p.worker && p.isFree() && p.isPressing() && ps.begin != nil:
		p.worker = true
		ps.begin(p)
	case p.isForgotten():
		delete(ps.of, p.name)
	}
	ps.noteBack()
}

func (ps *projects) noteBack() {
	busy := func(p *project) bool { return p.worker }
	if ps.looked && !ps.isBack && !slices.ContainsFunc(slices.Collect(maps.Values(ps.of)), busy) {
		ps.isBack = true
		close(ps.back)
	}
}

// await unlocks mu to wait until settle has made ready true, or ctx ends.
func (ps *projects) await(ctx context.Context, p *project, ready func() bool) error {
	for !ready() {
		if p.settled == nil {
			p.settled = make(chan struct{})
		}
		settled := p.settled
		ps.mu.Unlock()
		select {
		case <-settled:
		case <-ctx.Done():
		}
		ps.mu.Lock()
		if ctx.Err() != nil && !ready() {
			return ctx.Err()
		}
	}
	return nil
}

// listen subscribes to container events, until close.
func (ps *projects) listen() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.deafen == nil {
		ps.deafen = ps.events.watch(context.Background(), projectTopics, ps.heard) // ends with close
	}
}

func (ps *projects) close() {
	ps.mu.Lock()
	deafen := ps.deafen
	ps.mu.Unlock()
	if deafen != nil {
		deafen()
	}
}

// supervise has begin start the workers from now on; nil: there are none.
func (ps *projects) supervise(begin func(*project)) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.begin = begin
	if begin == nil {
		ps.tellAll() // Run may have been about to
		return
	}
	ps.unknown.add("")        // everything is looked at
	for _, p := range ps.of { // a former Run has missed what happened since
		ps.schedule(p, time.Time{})
		p.news, p.more, p.made, p.seen, p.failures = false, true, made{}, Observed{}, 0
		ps.settle(p)
	}
}

// schedule sets when a worker has to look even without news; zero: never. It needs mu.
func (ps *projects) schedule(p *project, due time.Time) {
	if p.alarm != nil {
		p.alarm.Stop()
		p.alarm = nil
	}
	if !due.IsZero() {
		p.alarm = time.AfterFunc(time.Until(due), func() {
			ps.with(p.name, func(p *project) { p.alarm, p.news = nil, true })
		})
	}
}

// tend runs do for a free project, and ends its worker. The context of do ends when a change cannot
// wait any longer; due is when to look again.
func (ps *projects) tend(ctx context.Context, p *project, do func(ctx context.Context) (due time.Time)) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ctx.Err() != nil {
		ps.begin = nil // Run ends, and another worker would end at once
	} else if p.isFree() {
		ctx, end := context.WithCancel(ctx)
		defer end()
		p.end, p.news = end, false
		ps.schedule(p, time.Time{})
		ps.mu.Unlock()
		due := do(ctx)
		ps.mu.Lock()
		p.end, p.news = nil, p.news || ctx.Err() != nil // it may have been ended half way
		ps.schedule(p, due)
	}
	p.worker = false
	ps.settle(p)
}

// take gives a project to a change, once former changes and its worker are done with it. The
// worker is soon cut short: it could wait for something that never comes. letGo takes what
// the change brought up to date, nil if it changed nothing. After a change, or if there was
// news meanwhile, a worker looks at the project.
func (ps *projects) take(ctx context.Context, name string) (letGo func(*made), err error) {
	ps.with(name, func(p *project) { p.changes++ })
	unlock, err := ps.changing.lock(ctx, name)
	if err != nil {
		ps.with(name, func(p *project) { p.changes-- })
		return nil, err
	}
	letGo = func(m *made) {
		ps.with(name, func(p *project) {
			p.changes--
			if m != nil {
				p.made, p.news, p.more = *m, true, true
				p.seen = Observed{} // what a change does is not told
				ps.tellWaiting(p)
			}
		})
		unlock()
	}
	ps.mu.Lock()
	p := ps.get(name)
	p.decide()
	if p.end != nil {
		soon := time.AfterFunc(endSoon, p.end)
		err = ps.await(ctx, p, func() bool { return p.end == nil })
		soon.Stop()
	}
	ps.mu.Unlock()
	if err != nil {
		letGo(nil)
		return nil, fmt.Errorf("cannot wait for the supervisor of project %s: %w", name, err)
	}
	return letGo, nil
}

// decide ends what LeaveAlone began.
func (p *project) decide() { p.news, p.left = p.news || p.left, false }

// wait waits for news of a project since told, at most for d. The error is that of ctx.
func (ps *projects) wait(ctx context.Context, name string, told int, d time.Duration) error {
	resting, wake := context.WithTimeout(ctx, d)
	defer wake()
	ps.with(name, func(p *project) {
		_ = ps.await(resting, p, func() bool { return p.told != told }) // a timeout is not an error
	})
	return ctx.Err()
}

// tell notes that something, such as a change of health, has happened to a project.
func (ps *projects) tell(name string) { ps.with(name, ps.tellLocked) }

// tellLocked needs mu.
func (ps *projects) tellLocked(p *project) {
	p.news = true
	p.told++
	ps.settle(p)
}

// tellAll needs mu.
func (ps *projects) tellAll() {
	for _, p := range ps.of {
		ps.tellLocked(p)
	}
}

// heard notes an event of a container; "": perhaps of any. Run finds out unknown projects.
func (ps *projects) heard(id string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if id == "" && ps.begin == nil {
		ps.tellAll() // without Run, nothing else does
	}
	for _, p := range ps.of {
		if p.known[id] != nil {
			ps.tellLocked(p)
			return
		}
	}
	ps.unknown.add(id)
}

// tellFound notes the projects that have containers, and that something may have happened to any.
func (ps *projects) tellFound(names map[string]bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for name := range names {
		ps.get(name).more = true
	}
	ps.tellAll()
	ps.looked = true
	ps.noteBack() // there may be no project
}

// tellWaiting has waiting projects looked at after p changed: they may join it. It needs mu.
func (ps *projects) tellWaiting(p *project) {
	for _, other := range ps.of {
		other.stale = other.stale || other != p
		if other != p && len(other.waits) > 0 {
			ps.tellLocked(other)
		}
	}
}

// noteWaits notes what replicas wait for, and tells the project if that may have come since the look.
func (ps *projects) noteWaits(name string, waits []Wait) {
	ps.with(name, func(p *project) {
		p.waits = waits
		if len(waits) > 0 && p.stale {
			ps.tellLocked(p)
		}
	})
}

func (ps *projects) noteFound(name string, found []container.Container) {
	ps.with(name, func(p *project) {
		known := make(map[string]*history, len(found))
		for _, c := range found {
			known[c.ID] = cmp.Or(p.known[c.ID], &history{})
		}
		p.known = known
	})
}

func newLocks() locks {
	same := func(held, wanted limit.Key) bool { return held.Kind == wanted.Kind }
	return locks{limit.New(0, limit.Bound{Most: 1, Counts: same})}
}

type locks struct{ *limit.Limiter }

// lock waits for the project; once ctx has ended, it takes it only if it is free at once.
func (l locks) lock(ctx context.Context, project string) (unlock func(), err error) {
	slot, err := l.Acquire(ctx, limit.Key{Kind: project}, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot wait for another change of project %s: %w", project, ctx.Err())
	}
	return slot.Release, nil
}
