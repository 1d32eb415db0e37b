package runtime

import "sync"

// maxAgenda is how many objects an agenda names before it says "everything".
const maxAgenda = 1024

// agenda collects names of projects, or ids of containers; "" is all, as after missed events.
type agenda struct {
	poked chan struct{} // holds a token while something is on the agenda

	mu    sync.Mutex
	names map[string]bool
}

func newAgenda() *agenda {
	return &agenda{poked: make(chan struct{}, 1), names: make(map[string]bool)}
}

func (a *agenda) add(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.names[name] = true
	if len(a.names) > maxAgenda {
		a.names = map[string]bool{"": true}
	}
	poke(a.poked)
}

func (a *agenda) take() map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := a.names
	a.names = make(map[string]bool)
	return taken
}
