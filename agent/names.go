package agent

import (
	"cmp"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/store"
)

// head caches what status and each waiting change need of a document, as far as it can be read:
// parsing a thousand documents takes longer than the rest of a status. Name and components are in
// the deployment's record, too: reports need them even after the document is lost.
type head struct { // immutable
	name       string
	labels     map[string]string
	components []store.Component
}

func headFrom(document []byte) (h head) {
	doc, _ := margo.ParseDeployment(document) // its faults are found when it is staged
	if doc == nil {
		return h
	}
	h.name, h.labels = doc.Name, doc.Labels
	for _, c := range doc.Components {
		h.components = append(h.components, store.Component{Name: c.Name})
	}
	return h
}

func (b *base) headOf(document digest.Digest) head {
	if h, known := b.heads.get(document); known {
		return h
	}
	body, err := b.store.Artifact(document)
	if err != nil {
		return head{} // it may come again
	}
	h := headFrom(body)
	b.heads.put(document, h)
	return h
}

// nameOf is the name in the deployment's document, else its id. Records of earlier versions of
// this program have no name.
func (b *base) nameOf(d *store.Deployment) string {
	return cmp.Or(d.Name, b.headOf(d.Desired.Digest).name, d.ID)
}
