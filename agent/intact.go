package agent

import (
	"context"
	"reflect"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
)

// intact is a revision that was made to run, or found to: all of its containers
// were on the device, and nothing else of its deployment. As long as they are, its
// packages need not be loaded to find that nothing is to be done.
type intact struct {
	revision store.Revision
	outlines []runtime.Outline // of its components
}

// isIntact tells whether a revision was seen to be on the device as a whole and
// still is. Where it cannot tell, who applies the revision can.
func (r *reconciler) isIntact(ctx context.Context, w *worker, rev *store.Revision) bool {
	if w.intact == nil || !reflect.DeepEqual(&w.intact.revision, rev) {
		return false
	}
	for _, o := range w.intact.outlines {
		if same, err := r.runtime.Intact(ctx, o); err != nil || !same {
			return false
		}
	}
	return true
}
