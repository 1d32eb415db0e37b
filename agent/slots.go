package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// What waits for what.
//
// Work that changes containers needs a slot of its lane, see lane. No lane waits
// for another one, so an installation never holds up a rollback, a removal, or
// what keeps a deployment running:
//
//   - changing: installations and updates. They stand in line behind each other, in
//     the order in which they came.
//   - returning: what an operator or the WFM takes back: rollbacks, removals, the
//     way back from an update that failed, the removal of what never worked. They
//     stand in line behind each other alone.
//   - keeping: checks that what is installed runs. They stand in line behind each
//     other alone.
//
// A slot is for work that uses the device. Work that holds one for longer than
// yieldAfter is mostly waiting (for a health check, a dependency, a hook, a stop
// grace period): it yields its slot to the next in line and goes on without one.
// So a lane moves on however long each piece of work takes. Installations and
// updates alone are bounded in how many may have begun (changesBegun), those that
// have yielded included: each holds its Compose project in memory, and no time
// bounds it but its timeout (Settings.MaxTimeout).
//
// The site's hooks have the same lanes, so that a hook that is asked about an
// installation does not delay one that is asked about a removal. Here each lane is
// bounded, since the timeout of a hook is the site's own.
//
// Downloads have slots of their own, see round. Nothing else waits for those.
//
// A worker in line holds only its record, no document and no package.
const (
	// yieldAfter is the same rule as slowAfter of the runtime's supervisor.
	yieldAfter = 5 * time.Second
	// slotsOfLane is how many deployments of one lane use the device at once.
	slotsOfLane = 2
	// changesBegun is how many installations and updates may have begun at once.
	changesBegun = 8
	// hooksBegun is how many hooks of one lane may run at once.
	hooksBegun = 8
)

// lane is what a piece of work is for. Lanes do not wait for each other.
type lane int

const (
	changing lane = iota
	returning
	keeping
	lanes
)

// newLanes makes the slots of all lanes, of which so many are busy at once; changes
// bounds how many have begun of installations and updates, others of each other lane.
func newLanes(busy, changes, others int) (all [lanes]*slots) {
	for l := range all {
		all[l] = &slots{busy: busy, begun: others}
	}
	all[changing].begun = changes
	return all
}

// slots bounds how much work of one kind is done at once. First come, first served,
// except that a slot whose key is at its bound is passed over.
type slots struct {
	busy     int // slots that have not been yielded; 0: no bound
	begun    int // slots that have not been released; 0: no bound
	keyBegun int // the same of slots with one key

	mu     sync.Mutex
	held   []*slot
	line   []*slot
	closed bool          // none is granted
	idle   chan struct{} // poked when none is held
}

// slot lets one piece of work be done.
type slot struct {
	of    *slots
	owner string   // the deployment, for people
	keys  []string // what it shares a bound with, beside all

	granted chan struct{} // closed when it is held

	// Guarded by of.mu:
	yielded bool          // it does not count as busy
	slow    string        // why its work makes no progress; empty: it does
	waits   bool          // for others, who are not known to be slow
	since   time.Time     // when that began
	turns   []*time.Timer // until another one may have it, and another slow one
	end     func()        // ends the work so that another one gets the slot; nil: it is not taken away
	ending  bool          // that was called
	was     string        // slow, when end was called; empty where it waited
}

// request puts a slot in line. It has to be released, held or not.
func (s *slots) request(owner string, keys ...string) *slot {
	slot := &slot{of: s, owner: owner, keys: keys, granted: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line = append(s.line, slot)
	s.grant()
	return slot
}

// isFree says whether a slot would be granted at once.
func (s *slots) isFree() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.line) == 0 && s.full(&slot{}) == nil
}

// try is request for work that does not wait; nil: there is no slot.
func (s *slots) try(owner string, end func()) *slot {
	slot := &slot{of: s, owner: owner, granted: make(chan struct{}), end: end}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.line) > 0 || s.closed || s.full(slot) != nil {
		return nil
	}
	s.held = append(s.held, slot)
	close(slot.granted)
	return slot
}

// preemptible says how the work of a slot is ended when another one needs the slot
// while this one is slow.
func (t *slot) preemptible(end func()) {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.end = end
}

// wait returns when the slot is held, or with ctx's error.
func (t *slot) wait(ctx context.Context) error {
	if t.holds() { // one that is free is not refused
		return nil
	}
	select {
	case <-t.granted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *slot) holds() bool {
	select {
	case <-t.granted:
		return true
	default:
		return false
	}
}

// yield gives a slot that is held to the next in line. The work goes on.
func (t *slot) yield() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.yielded = true
	t.of.grant()
}

// slows records why the work of a slot makes no progress; empty: it does. Such a slot is
// taken away when another deployment needs it: after yieldAfter, or after slowTurn if
// that one is known to be slow, too. waits says that it is the turn of others.
func (t *slot) slows(why string, waits bool) {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	switch {
	case why == "":
		t.stopTurns()
	case t.slow == "":
		t.since = time.Now()
		t.turns = []*time.Timer{time.AfterFunc(yieldAfter, t.of.again), time.AfterFunc(slowTurn, t.of.again)}
	}
	t.slow, t.waits = why, waits
	t.of.grant()
}

// stopTurns is for work that makes progress, or has ended. The caller holds of.mu.
func (t *slot) stopTurns() {
	for _, turn := range t.turns {
		turn.Stop()
	}
	t.turns = nil
}

// wasSlow says why the work of a slot made no progress when the slot was taken away.
func (t *slot) wasSlow() string {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	return t.was
}

// takeAway ends the work. The caller holds of.mu.
func (t *slot) takeAway() {
	t.ending = true
	if !t.waits {
		t.was = t.slow
	}
	t.end()
}

// again looks for slots that may be granted by now.
func (s *slots) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grant()
}

// release ends the work. It may be called again.
func (t *slot) release() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	same := func(o *slot) bool { return o == t }
	t.of.held = slices.DeleteFunc(t.of.held, same)
	t.of.line = slices.DeleteFunc(t.of.line, same)
	t.stopTurns()
	t.of.grant()
}

// grant hands out what is free, and takes away what is slow. The caller holds mu.
func (s *slots) grant() {
	if s.closed {
		if len(s.held) == 0 {
			poke(s.idle)
		}
		return
	}
	waiting := s.line[:0]
	for n, t := range s.line {
		if s.full(t) == nil {
			s.held = append(s.held, t)
			close(t.granted)
			continue
		}
		if s.keyBegun == 0 { // nobody behind it may overtake
			waiting = append(waiting, s.line[n:]...)
			break
		}
		waiting = append(waiting, t)
	}
	clear(s.line[len(waiting):])
	s.line = waiting
	s.preempt()
}

// preempt ends slow work for those in line, one for each. The caller holds mu.
func (s *slots) preempt() {
	ending := 0
	for _, h := range s.held {
		if h.ending {
			ending++
		}
	}
	for _, t := range s.line {
		if ending > 0 {
			ending--
			continue
		}
		by := s.full(t)
		if by == nil {
			continue
		}
		least := yieldAfter
		if len(t.keys) > 0 {
			least = slowTurn
		}
		var victim *slot
		for _, h := range s.held {
			may := by(h) && h.end != nil && !h.ending && h.slow != "" && time.Since(h.since) >= least
			if may && (victim == nil || h.since.Before(victim.since)) {
				victim = h
			}
		}
		if victim == nil {
			if len(t.keys) == 0 {
				return
			}
			continue
		}
		victim.takeAway()
	}
}

// shut waits until no slot is held, and keeps any from being granted until open is
// called. What is slow is ended; false: something is done that is not, or ctx has
// ended.
func (s *slots) shut(ctx context.Context) (open func(), ok bool) {
	s.mu.Lock()
	if s.closed || slices.ContainsFunc(s.held, func(h *slot) bool { return h.slow == "" || h.end == nil }) {
		s.mu.Unlock()
		return nil, false
	}
	s.closed, s.idle = true, make(chan struct{}, 1)
	for _, h := range s.held {
		h.takeAway()
	}
	s.grant()
	s.mu.Unlock()
	open = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed = false
		s.grant()
	}
	select {
	case <-s.idle:
		return open, true
	case <-ctx.Done():
		open()
		return nil, false
	}
}

// full says which of the slots that are held keep t from being granted; nil: none
// do. The caller holds mu.
func (s *slots) full(t *slot) (by func(*slot) bool) {
	for _, key := range t.keys { // first: they tell more
		if shares := func(h *slot) bool { return slices.Contains(h.keys, key) }; s.count(shares, s.keyBegun) {
			return shares
		}
	}
	if all := func(*slot) bool { return true }; s.count(all, s.begun) {
		return all
	}
	if busy := func(h *slot) bool { return !h.yielded }; s.count(busy, s.busy) {
		return busy
	}
	return nil
}

// count says whether at least bound of the slots that are held are such; never if
// bound is 0.
func (s *slots) count(such func(*slot) bool, bound int) bool {
	n := 0
	for _, h := range s.held {
		if such(h) {
			n++
		}
	}
	return bound > 0 && n >= bound
}

// waitsFor names the owners of the slots that keep t from being granted; none: it
// is held.
func (t *slot) waitsFor() (owners []string) {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if t.holds() {
		return nil
	}
	by := t.of.full(t)
	for _, h := range t.of.held {
		if by != nil && by(h) {
			owners = append(owners, h.owner)
		}
	}
	return owners
}

// maxOwners is how many deployments are named in one reason.
const maxOwners = 3

// named lists deployments for people.
func named(owners []string) string {
	if len(owners) > maxOwners {
		return fmt.Sprintf("%s and %d more", strings.Join(owners[:maxOwners], ", "), len(owners)-maxOwners)
	}
	return strings.Join(owners, ", ")
}
