package runtime

import (
	"fmt"
	"sync"
	"testing"
)

// An agenda that would name too much says that anything may have changed.
func TestAnAgendaIsBounded(t *testing.T) {
	a := newAgenda()
	a.addProject("p")
	a.addContainer("c")
	if i := a.take(); i.all || !i.projects["p"] || !i.containers["c"] || len(i.projects)+len(i.containers) != 2 {
		t.Errorf("it says %+v", i)
	}
	for n := range 2 * maxAgenda {
		a.addContainer(fmt.Sprint(n))
	}
	if i := a.take(); !i.all || len(i.containers) > 0 {
		t.Errorf("it names %d containers, all: %v", len(i.containers), i.all)
	}
	if i := a.take(); i.all {
		t.Error("it says the same twice")
	}
}

// Remembered is how many entries about projects an engine holds in memory.
func (e *Engine) Remembered() map[string]int {
	for _, mu := range []*sync.Mutex{&e.places.mu, &e.projects.mu} {
		mu.Lock()
		defer mu.Unlock()
	}
	return map[string]int{"claims": len(e.places.claims), "projects": len(e.projects.of), "containers": len(e.projects.owners)}
}
