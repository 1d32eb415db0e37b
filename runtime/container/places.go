package container

import (
	"strings"
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

	// blockedStart is how long a command may take to start before it gives up its
	// place among all, but not those of its container and its project: it waits for
	// something in its container, and does not use the processor.
	blockedStart = 2 * time.Second

	// No project or container has such a name.
	callers = "callers/"
	blocked = "blocked/"
)

// places bound how many commands run and start at the same time. Those of callers and
// those that belong to containers do not count against each other.
type places struct{ run, start *limit.Limiter } // the keys are of placeOf

// placeOf is what a command in a container of a project takes a place for. own says that
// it belongs to the container.
func placeOf(id, project string, own bool) limit.Key {
	if own {
		return limit.Key{Party: project, Kind: id}
	}
	return limit.Key{Party: callers + project, Kind: callers + id}
}

func newPlaces() places {
	inContainer := func(held, wanted limit.Key) bool { return strings.TrimPrefix(held.Kind, blocked) == wanted.Kind }
	inProject := func(held, wanted limit.Key) bool { return held.Party == wanted.Party }
	ofCallers := func(held, wanted limit.Key) bool {
		return strings.HasPrefix(held.Party, callers) && strings.HasPrefix(wanted.Party, callers)
	}
	busy := func(held limit.Key) bool { return !strings.HasPrefix(held.Kind, blocked) }
	return places{
		run: limit.New(0, limit.Bound{Most: maxContainerExecs, Counts: inContainer},
			limit.Bound{Most: maxProjectExecs, Counts: inProject}, limit.Bound{Most: maxCallerExecs, Counts: ofCallers}),
		start: limit.New(0, limit.Bound{Most: maxContainerStarts, Counts: inContainer}, limit.Bound{Most: maxProjectStarts, Counts: inProject},
			limit.Bound{Most: maxCallerStarts, Counts: func(held, wanted limit.Key) bool { return busy(held) && ofCallers(held, wanted) }},
			limit.Bound{Most: maxStarts, Counts: func(held, _ limit.Key) bool { return busy(held) }}),
	}
}
