package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
)

// Labels of the leases of a download, beside ownLabel with the name of the image.
const (
	projectLabel = "margolite/project"
	bootLabel    = "margolite/boot" // of a lease that counts in that boot alone
)

// held are the leases of a download. They outlive a failure, so that the next attempt goes on from there.
type held struct {
	parts     leases.Lease // of what was downloaded
	snapshots leases.Lease // of what was unpacked: until it is synced, its files may not survive a power cut
}

// hold makes the leases of a download, or finds those of a former attempt.
func (p *pull) hold(ctx context.Context) error {
	p.held.parts = p.lease("")
	p.held.snapshots = p.lease(p.boot)
	for _, l := range p.held.all() {
		_, err := p.client.LeasesService().Create(ctx, leases.WithID(l.ID), leases.WithLabels(l.Labels))
		if err != nil && !errdefs.IsAlreadyExists(err) {
			return fmt.Errorf("cannot lease download: %w", err)
		}
	}
	return nil
}

// lease describes a lease of the download that counts in one boot; "": in all.
func (p *pull) lease(boot string) leases.Lease {
	return leases.Lease{
		ID:     strings.Join([]string{"pull", boot, p.want.For, p.name, p.want.Platform}, " "),
		Labels: map[string]string{ownLabel: p.name, projectLabel: p.want.For, bootLabel: boot},
	}
}

func (h held) all() []leases.Lease { return []leases.Lease{h.parts, h.snapshots} }

// leased has what is downloaded held.
func (p *pull) leased(ctx context.Context) context.Context {
	return leases.WithLease(ctx, p.held.parts.ID)
}

// keep holds a part or a snapshot that is here.
func (p *pull) keep(ctx context.Context, r leases.Resource) error {
	lease := p.held.parts
	if r.Type != "content" {
		lease = p.held.snapshots
	}
	err := p.client.LeasesService().AddResource(ctx, lease, r)
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("cannot lease %s: %w", r.ID, err)
	}
	return nil
}

// release deletes leases. What nothing else refers to is collected later.
func (i *Images) release(ctx context.Context, held ...leases.Lease) error {
	for _, l := range held {
		if err := i.client.LeasesService().Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("cannot end download of %s: %w", l.Labels[ownLabel], err)
		}
	}
	return nil
}

func (i *Images) downloads(ctx context.Context) ([]leases.Lease, error) {
	begun, err := i.client.LeasesService().List(ctx, fmt.Sprintf("labels.%q", ownLabel))
	if err != nil {
		return nil, fmt.Errorf("cannot list downloads: %w", err)
	}
	return begun, nil
}

// distrust removes what a former boot has unpacked for images that it did not complete: unknown to containerd, it may
// never have reached the medium. It is unpacked again.
func (i *Images) distrust(ctx context.Context) error {
	i.trusting.Lock()
	defer i.trusting.Unlock()
	if i.trusted {
		return nil
	}
	begun, err := i.downloads(ctx)
	if err != nil {
		return err
	}
	former := slices.DeleteFunc(begun, func(l leases.Lease) bool {
		boot := l.Labels[bootLabel]
		return boot == "" || boot == i.boot
	})
	if err := errors.Join(i.release(ctx, former...), i.collect(ctx)); err != nil {
		return err
	}
	i.trusted = true
	return nil
}
