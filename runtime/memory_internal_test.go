package runtime

import (
	"fmt"
	"sync"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// An agenda that would name too much says that anything may have changed.
func TestAnAgendaIsBounded(t *testing.T) {
	a := newAgenda()
	a.add("p")
	a.add("c")
	if names := a.take(); !names["p"] || !names["c"] || len(names) != 2 {
		t.Errorf("it says %v", names)
	}
	for n := range 2 * maxAgenda {
		a.add(fmt.Sprint(n))
	}
	if names := a.take(); !names[""] || len(names) > maxAgenda {
		t.Errorf("it names %d objects, everything: %v", len(names), names[""])
	}
	expect.Equal(t, len(a.take()), 0, "objects named again")
}

// Remembered is how many entries about projects an engine holds in memory.
func (e *Engine) Remembered() map[string]int {
	for _, mu := range []*sync.Mutex{&e.places.mu, &e.projects.mu} {
		mu.Lock()
		defer mu.Unlock()
	}
	return map[string]int{"claims": len(e.places.claims), "projects": len(e.projects.of)}
}
