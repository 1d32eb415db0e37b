package container

import (
	"time"

	"github.com/margolite/margolite/runtime/limit"
)

const (
	// How many commands may run at once: in a container, in those of a project, and
	// for all callers. Those that come later wait. There is no bound for all: with it
	// the health checks of two projects could keep those of a third waiting.
	maxContainerExecs, maxProjectExecs, maxCallerExecs = 32, 64, 96
	// How many of them may be starting: runc takes much of a small processor.
	maxContainerStarts, maxProjectStarts, maxCallerStarts, maxStarts = 2, 3, 3, 4

	// blockedStart is how long a command may take to start before others may start,
	// too: it waits for something in its container, and does not use the processor.
	blockedStart = 2 * time.Second

	callers = "callers"
)

// places bound how many commands run and start at the same time. Those of callers and
// those that belong to containers do not count against each other.
type places struct {
	run, start map[bool]*limit.Limiter // by whether they belong to containers; the keys are of placeOf
	startAny   *limit.Limiter          // the party is callers or none
}

// placeOf is what a command in a container of a project takes a place for.
func placeOf(id, project string) limit.Key { return limit.Key{Party: project, Kind: id} }

func newPlaces() places {
	inContainer := func(held, wanted limit.Key) bool { return held.Kind == wanted.Kind }
	inProject := func(held, wanted limit.Key) bool { return held.Party == wanted.Party }
	all := func(_, _ limit.Key) bool { return true }
	ofCallers := func(held, wanted limit.Key) bool { return held.Party == callers && wanted.Party == callers }
	run := []limit.Bound{{Most: maxContainerExecs, Counts: inContainer}, {Most: maxProjectExecs, Counts: inProject}}
	start := []limit.Bound{{Most: maxContainerStarts, Counts: inContainer}, {Most: maxProjectStarts, Counts: inProject}}
	return places{
		run:      map[bool]*limit.Limiter{true: limit.New(0, run...), false: limit.New(0, append(run, limit.Bound{Most: maxCallerExecs, Counts: all})...)},
		start:    map[bool]*limit.Limiter{true: limit.New(0, start...), false: limit.New(0, start...)},
		startAny: limit.New(0, limit.Bound{Most: maxCallerStarts, Counts: ofCallers}, limit.Bound{Most: maxStarts, Counts: all}),
	}
}
