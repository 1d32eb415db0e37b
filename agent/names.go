package agent

import (
	"cmp"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/store"
)

// head is what is asked for again and again of a document, as far as it can be read: by
// the status, and by each change that waits. To parse a thousand of them takes longer
// than everything else that a status needs.
type head struct {
	name   string
	labels map[string]string // not to be changed
}

func (b *base) headOf(document digest.Digest) head {
	if h, known := b.heads.get(document); known {
		return h
	}
	body, err := b.store.Artifact(document)
	if err != nil {
		return head{} // it may come again
	}
	var h head
	if doc, _ := margo.ParseDeployment(body); doc != nil {
		h = head{doc.Name, doc.Labels}
	}
	b.heads.put(document, h)
	return h
}

// nameOf is what people and faults call a deployment: the name in its document, else
// its id. Records of earlier versions of this program do not hold the name.
func (b *base) nameOf(d *store.Deployment) string {
	return cmp.Or(d.Name, b.headOf(d.Desired.Digest).name, d.ID)
}
