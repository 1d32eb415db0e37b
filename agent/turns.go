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

func (t *turns) note(deployments ...store.Deployment) {
	t.mu.Lock()
	if t.places == nil {
		t.mu.Unlock()
		return
	}
	var next []string
	var left []int
	for i := range deployments {
		d := &deployments[i]
		former := t.places[strings.ToLower(d.ID)].number
		switch t.put(d); {
		case former == 0:
		case t.places[strings.ToLower(d.ID)].number == 0:
			left = append(left, former)
		case d.Place != former:
			next = append(next, d.ID)
		}
	}
	for _, number := range left {
		if id := t.after(number); id != "" {
			next = append(next, id)
		}
	}
	t.mu.Unlock()
	for _, id := range next {
		t.came(id)
	}
}

// put takes one record into account. The caller holds mu.
func (t *turns) put(d *store.Deployment) {
	id := strings.ToLower(d.ID)
	if d.Place > 0 && waitsForTurn(d) {
		t.places[id] = place{d.ID, d.Place}
		return
	}
	delete(t.places, id)
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
