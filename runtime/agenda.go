package runtime

import "sync"

// maxAgenda is how many objects an agenda names before it says "everything".
const maxAgenda = 1024

// agenda collects what has changed until somebody looks: projects by name, or
// containers by id, or everything, where events may have been missed.
type agenda struct {
	poked chan struct{} // holds a token while something is on the agenda

	mu    sync.Mutex
	items items
}

type items struct {
	all   bool
	names map[string]bool
}

func newAgenda() *agenda { return &agenda{poked: make(chan struct{}, 1)} }

func (a *agenda) addAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.items = items{all: true}
	poke(a.poked)
}

func (a *agenda) add(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.items.all {
		set(&a.items.names, name)
	}
	if len(a.items.names) > maxAgenda {
		a.items = items{all: true}
	}
	poke(a.poked)
}

// take returns what is on the agenda, and clears it.
func (a *agenda) take() items {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := a.items
	a.items = items{}
	return taken
}
