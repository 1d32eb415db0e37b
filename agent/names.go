package agent

import (
	"cmp"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/store"
)

// head is what is asked for again and again of a document, as far as it can be read: by
// the status, and by each change that waits. To parse a thousand of them takes longer
// than everything else that a status needs. Its name and components are in the record of
// the deployment, too: reports need them even after the document is lost.
type head struct { // not to be changed
	name       string
	labels     map[string]string
	components []store.Component
}

func headFrom(document []byte) (h head) {
	doc, _ := margo.ParseDeployment(document) // what is wrong with it is found out when it is staged
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

// nameOf is what people and faults call a deployment: the name in its document, else
// its id. Records of earlier versions of this program do not hold the name.
func (b *base) nameOf(d *store.Deployment) string {
	return cmp.Or(d.Name, b.headOf(d.Desired.Digest).name, d.ID)
}
