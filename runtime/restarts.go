package runtime

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/margolite/margolite/runtime/compose"
)

const (
	firstDelay = 400 * time.Millisecond // of the second restart in a row; the first one comes at once
	maxDelay   = time.Minute
	ranWell    = 10 * time.Second // a container that ran this long starts with a clean record
)

// history is how a container fared under this process, in memory only: a crash loop writes nothing.
type history struct {
	pid      int       // of the process that was seen last
	started  time.Time // when it started
	over     bool      // it ended, and due is reckoned
	failures int       // ends in a row that came too soon
	due      time.Time // when it may be started again
	again    int       // how often it was, by this process
}

// runs notes that pid was seen, and its start; with none, it is about to end and ignored.
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

// ends notes a stop, and computes when to restart: at once if it was never seen running.
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

// note notes the state of the container, and returns when its restart policy allows a start.
func (h *history) note(c ObservedContainer, p compose.Restart) (failures int, due time.Time) {
	if c.active() {
		h.runs(c.Pid, c.Started)
	} else {
		h.ends(time.Now(), p, rand.Float64())
	}
	return h.failures, h.due
}

// restarts counts restarts: since it last ran well, and by this process. A final end is none.
func (h *history) restarts() (lately, all int) {
	switch {
	case h == nil:
		return 0, 0
	case h.over:
		return max(h.failures-1, 0), h.again
	default:
		return h.failures, h.again
	}
}

// delay is zero, then doubles with each failure; chance, from 0 to 1, spreads it by a quarter,
// so that containers that failed together do not restart together.
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
