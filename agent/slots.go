package agent

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/margolite/margolite/runtime/limit"
)

// Work that changes containers needs a slot of its lane. Lanes never wait for each other, so an
// installation holds up neither a rollback, nor a removal, nor what keeps a deployment running:
//
//   - changing: installations and updates, in the order in which they came;
//   - returning: rollbacks, removals, the undoing of a failed update, and the removal of
//     what never worked;
//   - keeping: checks that what is installed runs.
//
// Work that holds a slot for longer than yieldAfter is mostly waiting (for a health check, a
// dependency, a hook, a stop grace period): it yields its slot and goes on without one, so that
// the lane moves on. Installations and updates that have begun are bounded (mostBegun): each
// holds its Compose project in memory until its timeout (Settings.MaxTimeout).
//
// The site's hooks have lanes of their own, so that a hook asked about an installation does not
// delay one asked about a removal. All of them are bounded, since the site sets their timeouts.
// Downloads have other slots, see round.
//
// A worker in line holds only its record, no document and no package.
const (
	// yieldAfter is the same rule as slowAfter of the runtime's supervisor.
	yieldAfter = 5 * time.Second
	// slotsOfLane bounds the deployments of a lane that use the device, and its running hooks.
	slotsOfLane = 2
	// mostBegun bounds the installations and updates, or hooks of one lane, that have begun,
	// those that have yielded included.
	mostBegun = 8
)

type lane int

const (
	changing lane = iota
	returning
	keeping
	lanes
)

const unbounded = math.MaxInt

const yielded = "yielded"

// newSlots makes slots for so much busy work at once; begun also counts what has yielded.
func newSlots(busy, begun int) *limit.Limiter {
	return limit.New(0,
		limit.Bound{Most: begun, Counts: func(_, _ limit.Key) bool { return true }}, // first, since it says more about the wait
		limit.Bound{Most: busy, Counts: func(held, _ limit.Key) bool { return held.Kind != yielded }},
	)
}

// newLanes makes the slots of all lanes; others bounds what has begun in each lane but changing.
func newLanes(others int) (all [lanes]*limit.Limiter) {
	for l := range all {
		all[l] = newSlots(slotsOfLane, others)
	}
	all[changing] = newSlots(slotsOfLane, mostBegun)
	return all
}

func yieldLater(s *limit.Slot) (stop func() bool) {
	return time.AfterFunc(yieldAfter, func() { s.Become(yielded) }).Stop
}

const maxOwners = 3

func named(owners []string) string {
	if len(owners) > maxOwners {
		return fmt.Sprintf("%s and %d more", strings.Join(owners[:maxOwners], ", "), len(owners)-maxOwners)
	}
	return strings.Join(owners, ", ")
}
