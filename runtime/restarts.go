package runtime

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

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

// starts notes that it is started now.
func (h *history) starts(now time.Time) {
	if h.over {
		h.again++
	}
	h.pid, h.started, h.over = 0, now, false
}

// ends notes that it does not run any more, and reckons when it may again by its
// restart policy. What never ran before the eyes of this process may at once.
func (h *history) ends(now time.Time, p container.Restart, chance float64) {
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

func (e *Engine) noteStart(project, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.historyOf(project, id).starts(time.Now())
}

// noteState notes what a container does, and returns when it may be started again
// by its restart policy.
func (e *Engine) noteState(project string, c ObservedContainer, p container.Restart) (failures int, due time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.historyOf(project, c.ID)
	if c.active() {
		h.runs(c.Pid, c.Started)
	} else {
		h.ends(time.Now(), p, rand.Float64())
	}
	return h.failures, h.due
}

// restartsOf is how often a container was started again: since it last ran well,
// and by this process. The end of one that stays so was followed by no start.
func (e *Engine) restartsOf(project, id string) (lately, all int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch h := e.history[project][id]; {
	case h == nil:
		return 0, 0
	case h.over:
		return max(h.failures-1, 0), h.again
	default:
		return h.failures, h.again
	}
}

// forgetHistories drops the histories of containers that a project does not have
// any more.
func (e *Engine) forgetHistories(project string, found []container.Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.history[project], func(id string, _ *history) bool {
		return !slices.ContainsFunc(found, func(c container.Container) bool { return c.ID == id })
	})
	if len(e.history[project]) == 0 {
		delete(e.history, project)
	}
}

// change is what Apply and Remove did to a project.
type change struct {
	count int    // Engine.revision when they did: no two changes have the same
	made  made   // what the last one brought up to date, if it came to its end
	seats []seat // that the ports and hosts files are for since then; nil: not known
}

// noteChange notes that Apply or Remove worked on a project, and what is up to
// date since then.
func (e *Engine) noteChange(project string, c change) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.revision++
	c.count = e.revision
	e.changed[project] = c
}

// forgetSeats notes that the supervisor changes the network of a project.
func (e *Engine) forgetSeats(project string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c, ok := e.changed[project]; ok {
		c.seats = nil
		e.changed[project] = c
	}
}

// forgetChange drops what Apply and Remove did to a project that has gone, unless
// they have worked on it since.
func (e *Engine) forgetChange(project string, count int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.changed[project].count == count {
		delete(e.changed, project)
	}
}

func (e *Engine) changeOf(project string) change {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed[project]
}

// historyOf needs e.mu.
func (e *Engine) historyOf(project, id string) *history {
	h := e.history[project][id]
	if h == nil {
		h = &history{}
		if e.history[project] == nil {
			e.history[project] = make(map[string]*history)
		}
		e.history[project][id] = h
	}
	return h
}
