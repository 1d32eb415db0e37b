package agent

import (
	"context"
	"encoding/json"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
)

// intact is a revision that was made to run, or found to: all of its containers
// were on the device, and nothing else of its deployment. As long as they are, its
// packages need not be loaded to find that nothing is to be done.
type intact struct {
	key      digest.Digest
	outlines []runtime.Outline // of its components
}

// keyOf tells records apart, as revisions by their documents, packages and images.
func keyOf(record any) digest.Digest {
	encoded, _ := json.Marshal(record) // cannot fail: it was read from JSON
	return digest.FromBytes(encoded)
}

// isIntact tells whether a revision was seen to be on the device as a whole and
// still is. Where it cannot tell, who applies the revision can.
func (r *reconciler) isIntact(ctx context.Context, w *worker, rev *store.Revision) bool {
	if w.intact == nil || w.intact.key != keyOf(rev) {
		return false
	}
	for _, o := range w.intact.outlines {
		if same, err := r.runtime.Intact(ctx, o); err != nil || !same {
			return false
		}
	}
	return true
}
