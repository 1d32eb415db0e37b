// Package clock tells the present on a device whose own clock may be wrong.
//
// It owns the lower bound of the present: the time of the program's build,
// what was known before the last restart, and what authenticated servers have
// told since. No time that it gives is before that bound. A device without a
// battery-backed clock starts in 1970 or at the date of its image; with a lower
// bound it does not take an expired certificate for a valid one.
//
// # Invariants
//
//   - Now is never before the bound, and the bound never goes back.
//   - The bound moves on with the time that passes, which the kernel counts
//     apart from the date, so that setting the date does not disturb it.
//   - A system clock that is right is left alone. One that is ahead of the truth
//     cannot be told from a right one: nothing here sets it back.
//
// # Failure model
//
// A bound that is in the future by mistake makes certificates look expired for
// good. The caller therefore hands in only what it has reason to believe: see
// [Clock.Learn]. Nothing is kept here: what survives a restart, the caller keeps.
package clock

import (
	"sync"
	"time"
)

// tolerance is how far the system's clock may be behind the bound without being
// called wrong: servers differ by seconds.
const tolerance = time.Minute

// Clock is a clock with a lower bound. It is safe for concurrent use.
type Clock struct {
	system func() time.Time

	mu    sync.Mutex
	floor time.Time // the lower bound at anchor, without a monotonic reading
	// anchor is what the system said when floor was set.
	anchor time.Time
}

// New makes a clock from that of the system and from times that have certainly
// passed; zero ones count for nothing. A system function that gives times with
// a monotonic reading, as time.Now does, lets the bound move on.
func New(system func() time.Time, floors ...time.Time) *Clock {
	c := &Clock{system: system, anchor: system()}
	for _, t := range floors {
		c.raise(c.anchor, t)
	}
	return c
}

// Now is the present: the system's, or the lower bound where that is later.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.system()
	if bound := c.bound(now); now.Before(bound) {
		return bound.In(now.Location())
	}
	return now
}

// Learn raises the lower bound to a time that an authenticated server has told.
// A server's clock may be wrong, too: the caller passes on only what fits the
// certificates of that very connection (identity.Identity.Plausible), so that a
// mistake ends with their renewal.
func (c *Clock) Learn(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raise(c.system(), t)
}

// Wrong tells the lower bound of the present, and whether the system's clock is
// before it by more than a server's clock may differ. The bound is worth keeping
// for the next start whether it is or not: in contrast to Now it rests on
// nothing that a reset of the device's clock could have spoiled.
func (c *Clock) Wrong() (floor time.Time, wrong bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.system()
	bound := c.bound(now)
	return bound, now.Add(tolerance).Before(bound)
}

// raise sets the bound, unless it is later already.
func (c *Clock) raise(now, t time.Time) {
	t = t.Round(0).UTC()
	if t.After(c.bound(now)) {
		c.floor, c.anchor = t, now
	}
}

// bound is the floor and the time that passed since it was set.
func (c *Clock) bound(now time.Time) time.Time {
	if !monotonic(now) || !monotonic(c.anchor) {
		return c.floor // the difference may be a clock that was set
	}
	return c.floor.Add(max(now.Sub(c.anchor), 0))
}

// monotonic reports whether a time has a monotonic reading, which makes
// differences true whatever was done to the clock between.
func monotonic(t time.Time) bool { return t != t.Round(0) }
