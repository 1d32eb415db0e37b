package image

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
)

// projectLabel is the label of a download's lease with who wants it, beside ownLabel with the name of the image.
const projectLabel = "margolite/project"

// hold makes the lease of what was downloaded and unpacked, or finds that of a former attempt: it outlives a failure, so
// that the next attempt goes on from there.
func (p *pull) hold(ctx context.Context) error {
	l := p.lease()
	_, err := p.client.LeasesService().Create(ctx, leases.WithID(l.ID), leases.WithLabels(l.Labels))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("cannot lease download: %w", err)
	}
	return nil
}

func (p *pull) lease() leases.Lease {
	return leases.Lease{
		ID:     strings.Join([]string{"pull", "", p.want.For, p.name, p.want.Platform}, " "),
		Labels: map[string]string{ownLabel: p.name, projectLabel: p.want.For},
	}
}

// leased has what is downloaded or unpacked held.
func (p *pull) leased(ctx context.Context) context.Context {
	return leases.WithLease(ctx, p.lease().ID)
}

// keep holds a part or a snapshot that is here.
func (p *pull) keep(ctx context.Context, r leases.Resource) error {
	err := p.client.LeasesService().AddResource(ctx, p.lease(), r)
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("cannot lease %s: %w", r.ID, err)
	}
	return nil
}

// release deletes a lease. What nothing else refers to is collected later.
func (i *Images) release(ctx context.Context, l leases.Lease) error {
	if err := i.client.LeasesService().Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot end download of %s: %w", l.Labels[ownLabel], err)
	}
	return nil
}
