package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// DefaultMinRate is how many bytes a download has to bring in a minute to keep its slot while others wait: a quarter
	// of what GPRS carries.
	DefaultMinRate = 16 << 10

	rateWindow = time.Minute
	looksAtIt  = 6 // within a window
	maxSlow    = 64

	// undisturbed is for how many windows a download keeps its slot as long as it is above the floor. After that the rate
	// that it needs while others wait doubles with each window, up to mostDoubled times.
	undisturbed = 10
	mostDoubled = 20
)

// slots bounds the downloads. A registry has a number of slots, and all registries together one more, so that one which
// holds all of its own leaves one to others. A key, such as the digest of a blob, is held by one download at a time.
//
// A download that brings less than the floor gives its slot to whoever waits for it, and comes after those that wait for
// registries that are faster. One that is above the floor gives it after a while, too, unless it is fast, and waits for its
// next turn.
type slots struct {
	perHost int
	floor   int64 // bytes a minute; 0: none
	window  time.Duration

	mu      sync.Mutex
	held    map[*slot]bool
	waiting []*slot              // in the order of their requests
	slow    map[string]time.Time // registries below the floor -> when they were seen to be
}

func newSlots(perHost int, floor int64, window time.Duration) *slots {
	return &slots{perHost: perHost, floor: floor, window: window, held: make(map[*slot]bool), slow: make(map[string]time.Time)}
}

// slot is the right to one download.
type slot struct {
	of    *slots
	host  string // "": nothing is downloaded, and only the key counts
	key   string // "": none
	ready chan struct{}
	came  atomic.Int64 // bytes
	busy  atomic.Bool  // with work on this device, while nothing is expected from the registry
}

var (
	errSlotGiven = errors.New("its download slot was given to another download")
	errSilent    = errors.New("the registry sends nothing")
)

// slowError says that a registry is below the floor.
type slowError struct {
	host        string
	rate, floor int64 // bytes a minute
}

func (e *slowError) Error() string {
	return fmt.Sprintf("registry %s sends %d bytes a minute, less than the minimum of %d", e.host, e.rate, e.floor)
}

// noting is told why a download is slow, empty if it is not, and whether it only waits for others.
type noting func(slow string, waits bool)

// take waits for a slot. note may be nil.
func (s *slots) take(ctx context.Context, host, key string, note noting) (*slot, error) {
	t := &slot{of: s, host: host, key: key, ready: make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, t)
	s.grant()
	slow := s.isSlow(host)
	s.mu.Unlock()
	select {
	case <-t.ready:
		return t, nil
	default:
	}
	if note != nil {
		if host == "" {
			note("waiting for another download of the same content", true)
		} else {
			note("waiting for a download slot: registry "+host, !slow)
		}
	}
	select {
	case <-t.ready:
		return t, nil
	case <-ctx.Done():
		t.release()
		return nil, context.Cause(ctx)
	}
}

// release gives the slot back, or ends the wait for it.
func (t *slot) release() {
	s := t.of
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, t)
	s.waiting = slices.DeleteFunc(s.waiting, func(w *slot) bool { return w == t })
	s.grant()
}

// grant hands out what is free: first to those that wait for registries above the floor.
func (s *slots) grant() {
	for _, slow := range []bool{false, true} {
		s.waiting = slices.DeleteFunc(s.waiting, func(w *slot) bool {
			if s.isSlow(w.host) != slow || !s.fits(w, nil) {
				return false
			}
			s.held[w] = true
			close(w.ready)
			return true
		})
	}
}

// fits says whether w could get its slot now if without gave its own back.
func (s *slots) fits(w, without *slot) bool {
	all, ofHost := 0, 0
	for h := range s.held {
		switch {
		case h == without:
			continue
		case h.key != "" && h.key == w.key:
			return false
		case h.host != "":
			all++
			if h.host == w.host {
				ofHost++
			}
		}
	}
	return w.host == "" || ofHost < s.perHost && all < s.perHost+1
}

// isWanted says whether somebody waits whom the slot would help. Another download of the same registry would be no
// faster.
func (t *slot) isWanted() bool {
	s := t.of
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.waiting, func(w *slot) bool {
		return w.host != t.host && !s.fits(w, nil) && s.fits(w, t)
	})
}

func (s *slots) isSlow(host string) bool {
	seen, slow := s.slow[host]
	return slow && time.Since(seen) < 10*s.window
}

// setSlow remembers what was measured of a registry.
func (s *slots) setSlow(host string, slow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slow {
		delete(s.slow, host)
		return
	}
	if len(s.slow) >= maxSlow {
		clear(s.slow)
	}
	s.slow[host] = time.Now()
}

// run downloads with the slot, and gives it back. do counts what comes in t.came. It is broken off when nothing comes,
// and with less than the floor when somebody waits for the slot, or when other registries may be faster. The cause is
// errSilent, errSlotGiven or a *slowError then.
func (t *slot) run(ctx context.Context, others bool, note noting, do func(context.Context) error) error {
	defer t.release()
	if t.host == "" {
		note("", false)
		return do(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		t.watch(ctx, cancel, others, note)
	}()
	note("", false)
	err := do(ctx)
	if err == nil && t.of.floor > 0 && t.came.Load() >= t.of.floor {
		t.of.setSlow(t.host, false)
	}
	cause := context.Cause(ctx)
	cancel(nil)
	<-watched
	switch {
	case err == nil || cause == nil:
		return err
	case errors.Is(cause, errSlotGiven):
		return errSlotGiven
	case errors.Is(cause, errSilent), errors.As(cause, new(*slowError)):
		return remote{cause}
	}
	return err
}

// local runs the part of a download that depends on this device alone. Its time does not count against the registry.
func (t *slot) local(do func() error) error {
	t.busy.Store(true)
	defer t.busy.Store(false)
	return do()
}

// floorAfter is the floor for a download that has had its slot for so long, while others wait for it.
func (s *slots) floorAfter(held time.Duration) int64 {
	return s.floor << min(max(held/s.window-undisturbed, 0), mostDoubled)
}

// watch measures the download until ctx ends.
func (t *slot) watch(ctx context.Context, cancel context.CancelCauseFunc, others bool, note noting) {
	tick := time.NewTicker(t.of.window / looksAtIt)
	defer tick.Stop()
	looks := []int64{0} // what had come at the last looks, within a window
	quiet := 0          // looks in a row that saw nothing come
	slow := false
	begun := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		came := t.came.Load()
		if t.busy.Load() {
			looks, quiet = []int64{came}, 0
			if slow {
				note("", false)
			}
			slow = false
			continue
		}
		if came > looks[len(looks)-1] {
			quiet = 0
		} else if quiet++; quiet > 2*looksAtIt {
			cancel(fmt.Errorf("%w for %s", errSilent, 2*t.of.window))
			return
		}
		looks = append(looks, came)
		if len(looks) <= looksAtIt || t.of.floor <= 0 {
			continue
		}
		rate := int64(float64(came-looks[0]) * float64(time.Minute) / float64(t.of.window)) // an int64 would overflow
		looks = looks[1:]
		if rate >= t.of.floor {
			if slow {
				note("", false)
			}
			slow = false
			t.of.setSlow(t.host, false)
			if rate < t.of.floorAfter(time.Since(begun)) && t.isWanted() {
				cancel(errSlotGiven)
				return
			}
			continue
		}
		why := &slowError{t.host, rate, t.of.floor}
		slow = true
		note(why.Error(), false)
		t.of.setSlow(t.host, true)
		switch {
		case others:
			cancel(why)
			return
		case t.isWanted():
			cancel(errSlotGiven)
			return
		}
	}
}
