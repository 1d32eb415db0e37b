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

// unbounded is for a lane in which any number may have begun.
const unbounded = math.MaxInt

// yielded is the kind of work that has yielded its slot.
const yielded = "yielded"

func every(_, _ limit.Key) bool { return true }

// newSlots makes slots of which so many are busy at once; begun bounds how many there
// are, those that have yielded included.
func newSlots(busy, begun int) *limit.Limiter {
	return limit.New(0,
		limit.Bound{Most: begun, Counts: every}, // first: it tells more of what is waited for
		limit.Bound{Most: busy, Counts: func(held, _ limit.Key) bool { return held.Kind != yielded }},
	)
}

// newLanes makes the slots of all lanes, of which so many are busy at once; changes
// bounds how many have begun of installations and updates, others of each other lane.
func newLanes(busy, changes, others int) (all [lanes]*limit.Limiter) {
	for l := range all {
		all[l] = newSlots(busy, others)
	}
	all[changing] = newSlots(busy, changes)
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
