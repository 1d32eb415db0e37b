package agent

import (
	"slices"
	"strings"
	"sync"

	"github.com/margolite/margolite/store"
)

// turns knows in which order the manifest lists the deployments whose change is neither
// made nor has failed. The records tell; this is a summary of them, since each change
// that waits asks for it.
type turns struct {
	store *store.Store
	came  func(id string) // nothing comes before a deployment any more

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
	for _, p := range t.places {
		if p.number < t.places[strings.ToLower(id)].number && p.number > nearest.number {
			nearest = p
		}
	}
	return nearest.id
}

// note takes new records into account. Where another deployment is the first one now, it
// has its turn; the others hear when they look again.
func (t *turns) note(deployments ...store.Deployment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.places == nil {
		return
	}
	before := t.first()
	var fresh []string // their workers begin anyway
	for i := range deployments {
		d := &deployments[i]
		if _, waited := t.places[strings.ToLower(d.ID)]; !waited {
			fresh = append(fresh, d.ID)
		}
		t.put(d)
	}
	if now := t.first(); now != "" && now != before && !slices.Contains(fresh, now) {
		t.came(now)
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

// first is the deployment that waits for no other one. The caller holds mu.
func (t *turns) first() string {
	var first place
	for _, p := range t.places {
		if first.number == 0 || p.number < first.number {
			first = p
		}
	}
	return first.id
}

// waitsForTurn says that the change of d is neither made nor has failed.
func waitsForTurn(d *store.Deployment) bool {
	switch Phase(d.Phase) {
	case Fetched, Staged, Applying:
		return true
	}
	return false
}
