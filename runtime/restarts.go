package runtime

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
)

const (
	firstDelay = 400 * time.Millisecond // of the second restart in a row; the first one comes at once
	maxDelay   = time.Minute
	ranWell    = 10 * time.Second // a container that ran this long starts with a clean record
)

// history is how a container fared since this process knows it. It is in memory
// only: a crash loop writes nothing.
type history struct {
	pid      int       // of the process that was seen last
	started  time.Time // when it started
	over     bool      // it ended, and due is reckoned
	failures int       // ends in a row that came too soon
	due      time.Time // when it may be started again
	again    int       // how often it was, by this process
}

// runs notes that the process pid, started at some time, was seen. One without a
// start is about to end, and tells nothing new.
func (h *history) runs(pid int, started time.Time) {
	if h.pid != pid && !started.IsZero() {
		h.pid, h.started, h.over = pid, started, false
	}
}

func (h *history) starts(now time.Time) {
	if h.over {
		h.again++
	}
	h.pid, h.started, h.over = 0, now, false
}

// ends notes that it does not run any more, and reckons when it may again by its
// restart policy. What never ran before the eyes of this process may at once.
func (h *history) ends(now time.Time, p compose.Restart, chance float64) {
	if h.over {
		return
	}
	h.over = true
	if h.started.IsZero() {
		h.due = now
		return
	}
	if now.Sub(h.started) >= cmp.Or(p.Window, ranWell) {
		h.failures = 0
	}
	h.due = now.Add(max(delay(h.failures, chance), p.Delay))
	h.failures++
}

// delay is none at first, and then doubles with each failure; chance, from 0 to
// 1, spreads it by a quarter, so that what fell together does not rise together.
func delay(failures int, chance float64) time.Duration {
	if failures == 0 {
		return 0
	}
	d := maxDelay
	if failures <= 16 {
		d = min(firstDelay<<(failures-1), maxDelay)
	}
	return d*3/4 + time.Duration(chance*float64(d/4))
}

// histories are those of the containers of all projects.
type histories struct {
	mu sync.Mutex
	of map[string]map[string]*history // by project and container
}

func (h *histories) starts(project, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.get(project, id).starts(time.Now())
}

// note notes what a container does, and returns when it may be started again by its
// restart policy.
func (h *histories) note(project string, c ObservedContainer, p compose.Restart) (failures int, due time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	own := h.get(project, c.ID)
	if c.active() {
		own.runs(c.Pid, c.Started)
	} else {
		own.ends(time.Now(), p, rand.Float64())
	}
	return own.failures, own.due
}

// restarts is how often a container was started again: since it last ran well, and by
// this process. The end of one that stays so was followed by no start.
func (h *histories) restarts(project, id string) (lately, all int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch own := h.of[project][id]; {
	case own == nil:
		return 0, 0
	case own.over:
		return max(own.failures-1, 0), own.again
	default:
		return own.failures, own.again
	}
}

// forget drops the histories of containers that a project does not have any more.
func (h *histories) forget(project string, found []container.Container) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.of[project], func(id string, _ *history) bool {
		return !slices.ContainsFunc(found, func(c container.Container) bool { return c.ID == id })
	})
	if len(h.of[project]) == 0 {
		delete(h.of, project)
	}
}

// get needs mu.
func (h *histories) get(project, id string) *history {
	own := h.of[project][id]
	if own == nil {
		own = &history{}
		if h.of[project] == nil {
			h.of[project] = make(map[string]*history)
		}
		h.of[project][id] = own
	}
	return own
}

// change is what Apply and Remove did to a project.
type change struct {
	count int    // that of changes when they did: no two have the same
	made  made   // what the last one brought up to date, if it came to its end
	seats []seat // that the ports and hosts files are for since then; nil: not known
}

// changes are what was done last to each project.
type changes struct {
	mu    sync.Mutex
	count int // of all
	last  map[string]change
}

// note notes that Apply or Remove worked on a project, and what is up to date since
// then.
func (c *changes) note(project string, done change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	done.count = c.count
	c.last[project] = done
}

// forgetSeats notes that the supervisor changes the network of a project.
func (c *changes) forgetSeats(project string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if done, ok := c.last[project]; ok {
		done.seats = nil
		c.last[project] = done
	}
}

// forget drops what Apply and Remove did to a project that has gone, unless they have
// worked on it since.
func (c *changes) forget(project string, count int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last[project].count == count {
		delete(c.last, project)
	}
}

func (c *changes) of(project string) change {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last[project]
}
