package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
)

func sum(asks []policy.ServiceAsk) policy.Resources {
	var all policy.Resources
	for _, a := range asks {
		all = all.Plus(a.Reserved)
	}
	return all
}

// heldBeside is what the other deployments reserve: what runs of them, or is
// about to.
func (r *reconciler) heldBeside(ctx context.Context, id string) (policy.Resources, error) {
	deployments, err := r.store.Deployments()
	if err != nil && len(deployments) == 0 {
		return policy.Resources{}, fmt.Errorf("cannot read the deployments: %w", err)
	}
	var held policy.Resources
	for i := range deployments {
		d := &deployments[i]
		rev := holding(d)
		if rev == nil || margo.SameID(d.ID, id) {
			continue
		}
		of, err := r.reservedBy(ctx, d.ID, rev)
		if err != nil {
			return held, err
		}
		held = held.Plus(of)
	}
	return held, nil
}

// holding is the revision of a deployment that has a share of the device; nil: none.
func holding(d *store.Deployment) *store.Revision {
	switch Phase(d.Phase) {
	case Staged, Applying, Active:
		if len(d.Desired.Staged) > 0 {
			return &d.Desired
		}
	}
	return d.Active
}

func (r *reconciler) reservedBy(ctx context.Context, id string, rev *store.Revision) (policy.Resources, error) {
	if held, ok := r.reservations.get(rev.Digest); ok {
		return held, nil
	}
	var held policy.Resources
	_, err := r.loadStaged(ctx, id, rev, true, func(_ margo.Component, _ *store.Staged, p *runtime.Project) {
		for _, s := range p.Compose.Services {
			held = held.Plus(reserved(s))
		}
	})
	if ctx.Err() != nil {
		return held, ctx.Err()
	}
	var f *fault
	if err != nil && !errors.As(err, &f) {
		return held, err
	}
	// What cannot be loaded does not run either, and keeps nobody else away.
	r.reservations.put(rev.Digest, held)
	return held, nil
}
