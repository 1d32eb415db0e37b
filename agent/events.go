package agent

import (
	"sync"
	"time"

	"github.com/margolite/margolite/agent/control"
)

// eventBuffer is how many events a subscriber may lag behind before it loses some.
const eventBuffer = 256

// hub distributes events without blocking the sender.
type hub struct {
	now     func() time.Time
	stirred chan struct{} // something happened besides polls

	mu   sync.Mutex
	subs map[chan control.Event]struct{}
}

func newHub(now func() time.Time) *hub {
	return &hub{now: now, stirred: make(chan struct{}, 1), subs: map[chan control.Event]struct{}{}}
}

func (h *hub) send(e control.Event) {
	if e.Kind != control.PollSucceeded && e.Kind != control.PollFailed {
		poke(h.stirred)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.subs) == 0 {
		return
	}
	e.Time = h.now()
	for c := range h.subs {
		select {
		case c <- e:
		default:
		}
	}
}

func (h *hub) subscribe() (<-chan control.Event, func()) {
	c := make(chan control.Event, eventBuffer)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subs[c] = struct{}{}
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.subs, c)
	}
}
