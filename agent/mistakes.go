package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/runtime/contain"
)

const (
	// maxMistakes bounds how many panics are remembered, so that the stack of each is logged
	// once.
	maxMistakes = 64
	// maxMistake bounds the text of one, in bytes: it may quote outside input.
	maxMistake = 512
)

// mistakes are the panics that ended one piece of work and nothing else.
type mistakes struct {
	logger *slog.Logger
	now    func() time.Time
	known  cache[string, bool]

	mu    sync.Mutex
	count int64
	last  *control.Mistake
}

// note counts and logs err if it is a panic, the first of its kind with the stack, and says
// whether it is one.
func (m *mistakes) note(what string, err error) bool {
	var p *contain.Panic
	if !errors.As(err, &p) {
		return false
	}
	text := margo.Shown(p.Error(), maxMistake)
	m.mu.Lock()
	m.count++
	m.last = &control.Mistake{Time: m.now().UTC(), Object: what, Text: text}
	m.mu.Unlock()
	if m.known.put(what+text, true) {
		m.logger.Error("internal error: this operation failed, everything else goes on", "object", what, "error", text, "stack", p.Stack)
	} else {
		m.logger.Warn("internal error: the same one again", "object", what, "error", text)
	}
	return true
}

func (m *mistakes) seen() (count int64, last *control.Mistake) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count, m.last
}

// Contained notes err if it is a panic that ended work outside the agent, as in the runtime.
func (a *Agent) Contained(what string, err error) { a.mistakes.note(what, err) }

// Panicked implements control.Backend.
func (a *Agent) Panicked(what string, value any) { a.mistakes.note(what, contain.Caught(value)) }

// contained drives a deployment. A panic fails the deployment like any other fault of this
// device, and its turn goes to the next one.
func (r *reconciler) contained(ctx context.Context, w *worker) error {
	err := contain.Call(func() error { return r.drive(ctx, w) })
	if !r.mistakes.note("deployment "+w.id, err) {
		return err
	}
	w.endTurn() // the panic skipped that
	var f *fault
	if errors.As(err, &f) { // already contained and recorded further down
		return err
	}
	failed := contain.Call(func() error { return r.stumbled(ctx, w, err) })
	r.mistakes.note("failure of deployment "+w.id, failed)
	return failed
}

// stumbled records that work on a deployment has panicked. An installed one stays installed,
// since nothing says that it does not run, and a finished one is not retried.
func (r *reconciler) stumbled(ctx context.Context, w *worker, why error) error {
	d, err := r.store.Deployment(w.id)
	if err != nil {
		return errors.Join(why, err)
	}
	f := &fault{code: codeInternal, err: fmt.Errorf("internal error of the agent: %s", margo.Shown(why.Error(), maxMistake))}
	switch Phase(d.Phase) {
	case Active:
		return why
	case Failed:
		if hasFormer(&d) && !r.triedAgain(&d) {
			return why
		}
	}
	return r.fail(ctx, w, &d, f)
}
