package agent

import (
	"strings"
	"sync"

	"github.com/margolite/margolite/store"
)

// turns knows in which order the manifest lists the deployments whose change is neither
// made nor has failed. The records tell; this is a summary of them, since each change
// that waits asks for it.
type turns struct {
	store *store.Store
	came  func(id string) // what comes before a deployment is another one now, or nothing

	mu     sync.Mutex
	places map[string]place // by id in lower case; nil: to be read
}

// place is where a manifest lists a deployment.
type place struct {
	id     string
	number int // from 1
}

// before is the deployment whose turn is before that of id; empty: there is none.
func (t *turns) before(id string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.places == nil {
		t.places = map[string]place{}
		deployments, _ := t.store.Deployments() // one that cannot be read is changed by nobody
		for i := range deployments {
			t.put(&deployments[i])
		}
	}
	var nearest place
	if own, waits := t.places[strings.ToLower(id)]; waits {
		for _, p := range t.places {
			if p.number < own.number && p.number > nearest.number {
				nearest = p
			}
		}
	}
	return nearest.id
}

// note says what records became.
func (t *turns) note(deployments ...store.Deployment) {
	var next []string
	t.mu.Lock()
	for i := range deployments {
		if left := t.put(&deployments[i]); left > 0 {
			if id := t.after(left); id != "" {
				next = append(next, id)
			}
		}
	}
	t.mu.Unlock()
	for _, id := range next {
		t.came(id)
	}
}

// put takes one record into account, and returns the place that it left; 0: none. The
// caller holds mu.
func (t *turns) put(d *store.Deployment) (left int) {
	if t.places == nil {
		return 0
	}
	id := strings.ToLower(d.ID)
	former := t.places[id].number
	if d.Place > 0 && waitsForTurn(d) {
		t.places[id] = place{d.ID, d.Place}
		return 0
	}
	delete(t.places, id)
	return former
}

// after is the deployment that comes behind a place. The caller holds mu.
func (t *turns) after(number int) string {
	var nearest place
	for _, p := range t.places {
		if p.number > number && (nearest.number == 0 || p.number < nearest.number) {
			nearest = p
		}
	}
	return nearest.id
}

// waitsForTurn says that the change of d is neither made nor has failed.
func waitsForTurn(d *store.Deployment) bool {
	switch Phase(d.Phase) {
	case Fetched, Staged, Applying:
		return true
	}
	return false
}
