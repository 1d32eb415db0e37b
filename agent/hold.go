package agent

import (
	"context"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/policy"
)

// locks are the update locks of this device: those that people hold, and the
// files that workloads hold.
type locks struct{}

// held are the locks that are held now, for decisions.
func (l *locks) held() []policy.Lock { return nil }

// list is what status tells of them.
func (l *locks) list() []control.Lock { return nil }

// Hold takes an update lock, or prolongs the one that the holder has.
func (a *Agent) Hold(ctx context.Context, r control.HoldRequest) (control.Lock, error) {
	return control.Lock{}, errLater
}

// Release gives locks back and returns them.
func (a *Agent) Release(ctx context.Context, r control.ReleaseRequest) ([]control.Lock, error) {
	return nil, errLater
}
