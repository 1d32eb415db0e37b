package agent

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/margolite/margolite/runtime/limit"
)

// What waits for what.
//
// Work that changes containers needs a slot of its lane. Lanes never wait for each other,
// so an installation holds up neither a rollback, nor a removal, nor what keeps a
// deployment running:
//
//   - changing: installations and updates, in the order in which they came;
//   - returning: what an operator or the WFM takes back: rollbacks, removals, the way back
//     from an update that failed, the removal of what never worked;
//   - keeping: checks that what is installed runs.
//
// A slot is for work that uses the device. Work that holds one for longer than yieldAfter
// is mostly waiting (for a health check, a dependency, a hook, a stop grace period): it
// yields its slot and goes on without one, so that the lane moves on. Only installations
// and updates are bounded in how many may have begun (mostBegun): each holds its Compose
// project in memory until its timeout (Settings.MaxTimeout).
//
// The site's hooks have lanes of their own, so that a hook that is asked about an
// installation does not delay one that is asked about a removal. All of them are bounded,
// since the site sets the timeout of a hook. Downloads have other slots, see round.
//
// A worker in line holds only its record, no document and no package.
const (
	// yieldAfter is the same rule as slowAfter of the runtime's supervisor.
	yieldAfter = 5 * time.Second
	// slotsOfLane is how many deployments of one lane use the device at once, and how
	// many hooks of one lane run.
	slotsOfLane = 2
	// mostBegun is how many installations and updates, or hooks of one lane, may have
	// begun at once, those that have yielded included.
	mostBegun = 8
)

// lane is what a piece of work is for. Lanes do not wait for each other.
type lane int

const (
	changing lane = iota
	returning
	keeping
	lanes
)

// unbounded is for a lane in which any number may have begun.
const unbounded = math.MaxInt

// yielded is the kind of work that has yielded its slot.
const yielded = "yielded"

// newSlots makes slots of which so many are busy at once; begun bounds how many there
// are, those that have yielded included.
func newSlots(busy, begun int) *limit.Limiter {
	return limit.New(0,
		limit.Bound{Most: begun, Counts: func(_, _ limit.Key) bool { return true }}, // first: it tells more of what is waited for
		limit.Bound{Most: busy, Counts: func(held, _ limit.Key) bool { return held.Kind != yielded }},
	)
}

// newLanes makes the slots of all lanes; others bounds how many have begun of each lane
// but changing.
func newLanes(others int) (all [lanes]*limit.Limiter) {
	for l := range all {
		all[l] = newSlots(slotsOfLane, others)
	}
	all[changing] = newSlots(slotsOfLane, mostBegun)
	return all
}

// yieldLater has a slot yielded once its work has taken long, unless stop is called
// before.
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
