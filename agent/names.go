package agent

import (
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/store"
)

// names are those that the WFM gave deployments, as their documents say. They
// are for people alone and in no record: each document is read when somebody
// asks for the first time, since reading a thousand of them takes longer than
// everything else that a status needs.
type names struct {
	store *store.Store

	mu    sync.Mutex
	known map[digest.Digest]string
}

// of gives the name of each deployment, "" where its document cannot be read.
// Those of other deployments are forgotten.
func (n *names) of(deployments []store.Deployment) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	all, known := make([]string, len(deployments)), make(map[digest.Digest]string, len(deployments))
	for i := range deployments {
		d := deployments[i].Desired.Digest
		name, ok := n.known[d]
		if !ok {
			name, ok = nameIn(n.store, d)
		}
		if ok {
			all[i], known[d] = name, name
		}
	}
	n.known = known
	return all
}

// nameIn is the name in a document, as far as that can be read.
func nameIn(s *store.Store, document digest.Digest) (name string, ok bool) {
	body, err := s.Artifact(document)
	if err != nil {
		return "", false
	}
	if doc, _ := margo.ParseDeployment(body); doc != nil {
		return doc.Name, true
	}
	return "", true
}
