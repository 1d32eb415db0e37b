package runtime

import "sync"

// maxAgenda is how many objects an agenda names before it says "everything".
const maxAgenda = 1024

// agenda collects what has changed until somebody looks: projects, containers
// whose project is still to be found out, or everything, where events may have
// been missed.
type agenda struct {
	poked chan struct{} // holds a token while something is on the agenda

	mu    sync.Mutex
	items items
}

type items struct {
	all        bool
	projects   map[string]bool
	containers map[string]bool // by id
}

func newAgenda() *agenda { return &agenda{poked: make(chan struct{}, 1)} }

func (a *agenda) addAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.items = items{all: true}
	poke(a.poked)
}

func (a *agenda) addProject(name string) {
	a.add(func(i *items) { set(&i.projects, name) })
}

func (a *agenda) addContainer(id string) {
	a.add(func(i *items) { set(&i.containers, id) })
}

func (a *agenda) add(note func(*items)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.items.all {
		note(&a.items)
	}
	if len(a.items.projects)+len(a.items.containers) > maxAgenda {
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
