package agent

import (
	"context"
	"errors"
	"testing"
)

// A change of the desired state interrupts a worker that has read an older one. A worker
// that has read this one, or none yet, goes on: the site's hook is asked once.
func TestAChangeInterruptsWhoHasNotReadIt(t *testing.T) {
	for name, c := range map[string]struct {
		before, after bool // the worker reads its record
		interrupted   bool
	}{
		"read before the change": {before: true, interrupted: true},
		"read after it":          {after: true},
		"read again after it":    {before: true, after: true},
		"not read":               {},
	} {
		t.Run(name, func(t *testing.T) {
			r := asker(t)
			r.ledger = &ledger{base: r.base}
			w := newWorker(lockedID)
			r.workers = map[string]*worker{w.id: w}
			ctx, interrupt := context.WithCancelCause(t.Context())
			w.begin(interrupt)
			if c.before {
				_, _ = r.ledger.see(w) // that there is no record
			}
			r.ledger.order(w.id)
			if c.after {
				_, _ = r.ledger.see(w)
			}
			r.changed([]string{w.id})
			if interrupted := errors.Is(context.Cause(ctx), errSuperseded); interrupted != c.interrupted {
				t.Errorf("interrupted: %t", interrupted)
			}
		})
	}
}
