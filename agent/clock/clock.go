// Package clock gives the present on a device whose own clock may be wrong.
//
// It owns a lower bound of the present: the program's build time, what was known before the last
// restart, and what authenticated servers have reported since. A device without a battery-backed
// clock starts in 1970 or at the date of its image; the bound keeps it from accepting an expired
// certificate.
//
// # Invariants
//
//   - Now is never before the bound, and the bound never goes back.
//   - The bound advances with the kernel's monotonic time, so that setting the date does not
//     disturb it.
//   - A clock that is ahead cannot be told from a right one: nothing here sets it back.
//
// # Failure model
//
// A bound that is wrongly in the future makes certificates look expired for good. Callers therefore
// pass only credible times: see [Clock.Learn]. Persistence is the caller's.
package clock

import (
	"sync"
	"time"
)

// tolerance is how far the system's clock may be behind the bound: servers differ by seconds.
const tolerance = time.Minute

// Clock is a clock with a lower bound. It is safe for concurrent use.
type Clock struct {
	system func() time.Time

	mu    sync.Mutex
	floor time.Time // the lower bound at anchor, without a monotonic reading
	// anchor is the system's time when floor was set.
	anchor time.Time
}

// New returns a clock based on the system's and on times that have certainly passed; zero ones are
// ignored. If system gives monotonic readings, as time.Now does, the bound advances.
func New(system func() time.Time, floors ...time.Time) *Clock {
	c := &Clock{system: system, anchor: system()}
	for _, t := range floors {
		c.raise(c.anchor, t)
	}
	return c
}

// Now returns the system's time, or the lower bound if that is later.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.system()
	if bound := c.bound(now); now.Before(bound) {
		return bound.In(now.Location())
	}
	return now
}

// Learn raises the lower bound to an authenticated server's time. Server clocks may be wrong too:
// callers pass only times that fit the certificates of that connection
// (identity.Identity.Plausible), so that a mistake ends with their renewal.
func (c *Clock) Learn(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raise(c.system(), t)
}

// Wrong returns the lower bound, and whether the system's clock is behind it by more than server
// clocks may differ. The bound is worth keeping for the next start in either case: unlike Now it
// does not depend on the device's clock, which may have been reset.
func (c *Clock) Wrong() (floor time.Time, wrong bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.system()
	bound := c.bound(now)
	return bound, now.Add(tolerance).Before(bound)
}

func (c *Clock) raise(now, t time.Time) {
	t = t.Round(0).UTC()
	if t.After(c.bound(now)) {
		c.floor, c.anchor = t, now
	}
}

// bound returns the floor plus the time since it was set.
func (c *Clock) bound(now time.Time) time.Time {
	if !monotonic(now) || !monotonic(c.anchor) {
		return c.floor // a difference may come from setting the clock
	}
	return c.floor.Add(max(now.Sub(c.anchor), 0))
}

// monotonic reports whether differences of t are correct even if the clock was set in between.
func monotonic(t time.Time) bool { return t != t.Round(0) }
