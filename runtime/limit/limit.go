// Package limit limits how much work is done at once, so that no party holds up another.
//
// Work needs a Slot of a Limiter. Slots are granted in the order of requests, except that work
// stopped by a Bound is passed over, and that a party whose work was slow lately comes last.
// Work that progresses too slowly (Rate) loses its slot when that helps another party.
package limit

import (
	"context"
	"slices"
	"sync"
	"time"
)

const maxSlow = 64 // parties remembered

// Key identifies the purpose of work.
type Key struct {
	Party string // whose pace it has, such as a registry; "": this device's
	Kind  string // what it shares with other work, such as a digest; "": nothing
}

// Bound limits the slots held that count beside a wanted one.
type Bound struct {
	Most   int
	Counts func(held, wanted Key) bool
}

// Limiter grants slots.
type Limiter struct {
	bounds []Bound
	memory time.Duration

	mu   sync.Mutex
	held []*Slot
	line []*Slot              // in the order of their requests
	slow map[string]time.Time // parties -> when their work was slow
	idle chan struct{}        // notified when no slot is held; nil: slots are granted
}

// New makes a limiter that remembers slow parties for the given time.
func New(memory time.Duration, bounds ...Bound) *Limiter {
	return &Limiter{bounds: bounds, memory: memory, slow: make(map[string]time.Time)}
}

// Slot is the right to do one piece of work.
type Slot struct {
	Key
	of      *Limiter
	granted chan struct{}
	preempt func()

	// Guarded by of.mu, as is Kind:
	spare  bool     // another party may have it
	except []string // kinds of work that may not have it
	given  bool     // preempt was called
}

// Acquire waits for a slot, which has to be released. preempt is called once, under a lock, when
// another party needs the slot; nil: it is kept. waits is called if the slot is not free at
// once, with whether the party is known to be slow; nil: ignored.
func (l *Limiter) Acquire(ctx context.Context, key Key, preempt func(), waits func(slow bool)) (*Slot, error) {
	s := l.slot(key, preempt)
	l.mu.Lock()
	l.line = append(l.line, s)
	l.grant()
	slow := l.isSlow(key.Party)
	l.mu.Unlock()
	select { // a free one is granted even if ctx has ended
	case <-s.granted:
		return s, nil
	default:
	}
	if waits != nil {
		waits(slow)
	}
	select {
	case <-s.granted:
		return s, nil
	case <-ctx.Done():
		s.Release()
		return nil, context.Cause(ctx)
	}
}

func (l *Limiter) slot(key Key, preempt func()) *Slot {
	return &Slot{Key: key, of: l, granted: make(chan struct{}), preempt: preempt}
}

// Try is Acquire without waiting; nil: no slot is free.
func (l *Limiter) Try(key Key, preempt func()) *Slot {
	s := l.slot(key, preempt)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.idle != nil || l.full(key, nobody) != nil {
		return nil
	}
	l.held = append(l.held, s)
	return s
}

// Ahead returns the parties whose slots block a new one with this key; none: it is free.
func (l *Limiter) Ahead(key Key) (parties []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.full(key, nobody); b != nil {
		for _, h := range l.held {
			if b.Counts(h.Key, key) {
				parties = append(parties, h.Party)
			}
		}
	}
	return parties
}

// Parties returns the parties that hold slots for work of a kind.
func (l *Limiter) Parties(kind string) (parties []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.held {
		if h.Kind == kind {
			parties = append(parties, h.Party)
		}
	}
	return parties
}

// Shut waits until no slot is held, and grants none until open is called. Spare slots are taken
// away; false: some slot is not spare, or ctx has ended.
func (l *Limiter) Shut(ctx context.Context) (open func(), ok bool) {
	l.mu.Lock()
	if l.idle != nil || slices.ContainsFunc(l.held, func(h *Slot) bool { return !h.spare || h.preempt == nil }) {
		l.mu.Unlock()
		return nil, false
	}
	idle := make(chan struct{}, 1)
	l.idle = idle
	for _, h := range l.held {
		if !h.given {
			h.given = true
			h.preempt()
		}
	}
	l.grant()
	l.mu.Unlock()
	open = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.idle = nil
		l.grant()
	}
	select {
	case <-idle:
		return open, true
	case <-ctx.Done():
		open()
		return nil, false
	}
}

// Become changes the kind of a slot's work.
func (s *Slot) Become(kind string) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.Kind = kind
	s.of.grant()
}

// Release gives the slot back. It may be repeated.
func (s *Slot) Release() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	same := func(o *Slot) bool { return o == s }
	s.of.held = slices.DeleteFunc(s.of.held, same)
	s.of.line = slices.DeleteFunc(s.of.line, same)
	s.of.grant()
}

// Slow sets whether the work of the slot's party is slow.
func (s *Slot) Slow(slow bool) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if !slow {
		delete(s.of.slow, s.Party)
		return
	}
	if len(s.of.slow) >= maxSlow {
		clear(s.of.slow)
	}
	s.of.slow[s.Party] = time.Now()
}

// Spare sets whether a waiting party may have the slot, except for work of some kinds.
func (s *Slot) Spare(spare bool, except ...string) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.spare, s.except = spare, except
	s.of.grant()
}

func (l *Limiter) isSlow(party string) bool {
	seen, slow := l.slow[party]
	return slow && time.Since(seen) < l.memory
}

// grant hands out free slots, first to parties that are not slow, and takes away spare ones.
func (l *Limiter) grant() {
	if l.idle != nil {
		if len(l.held) == 0 {
			select {
			case l.idle <- struct{}{}:
			default:
			}
		}
		return
	}
	for _, slow := range []bool{false, true} {
		l.line = slices.DeleteFunc(l.line, func(w *Slot) bool {
			if l.isSlow(w.Party) != slow || l.full(w.Key, nobody) != nil {
				return false
			}
			l.held = append(l.held, w)
			close(w.granted)
			return true
		})
	}
	given := func(h *Slot) bool { return h.given }
	for _, w := range l.line {
		if l.full(w.Key, given) == nil { // granted once the taken slot is released
			continue
		}
		// Another slot of the same party would be no faster.
		at := slices.IndexFunc(l.held, func(h *Slot) bool {
			return h.spare && !h.given && h.preempt != nil && h.Party != w.Party && !slices.Contains(h.except, w.Kind) &&
				l.full(w.Key, func(o *Slot) bool { return o == h || o.given }) == nil
		})
		if at >= 0 {
			l.held[at].given = true
			l.held[at].preempt()
		}
	}
}

func nobody(*Slot) bool { return false }

// full returns the first bound that blocks work if the gone slots were released; nil: none.
func (l *Limiter) full(wanted Key, gone func(*Slot) bool) *Bound {
	for i := range l.bounds {
		b := &l.bounds[i]
		n := 0
		for _, h := range l.held {
			if !gone(h) && b.Counts(h.Key, wanted) {
				n++
			}
		}
		if n >= b.Most {
			return b
		}
	}
	return nil
}
