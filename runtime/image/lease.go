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

// Labels of the leases that hold downloads, beside ownLabel with the name of the image.
const (
	projectLabel = "margolite/project"
	bootLabel    = "margolite/boot"
)

// hold makes the lease of a download, or finds that of a former attempt. It outlives a failure, so that the next
// attempt goes on from there.
func (p *pull) hold(ctx context.Context) (context.Context, error) {
	service := p.client.LeasesService()
	p.lease = p.leaseID()
	_, err := service.Create(ctx, leases.WithID(p.lease), leases.WithLabels(map[string]string{
		ownLabel: p.name, projectLabel: p.want.For, bootLabel: p.boot,
	}))
	switch {
	case errdefs.IsAlreadyExists(err):
		return p.leased(ctx), nil
	case err != nil:
		return nil, fmt.Errorf("cannot lease download: %w", err)
	}
	begun, err := p.downloads(ctx)
	if err != nil {
		return nil, err
	}
	for _, old := range begun {
		if old.Labels[ownLabel] == p.name && old.Labels[bootLabel] != p.boot {
			if err := p.takeOver(ctx, old); err != nil {
				return nil, fmt.Errorf("cannot resume download of an earlier boot: %w", err)
			}
		}
	}
	return p.leased(ctx), nil
}

func (p *pull) leaseID() string {
	return strings.Join([]string{"pull", p.boot, p.want.For, p.name, p.want.Platform}, " ")
}

func (p *pull) leased(ctx context.Context) context.Context { return leases.WithLease(ctx, p.lease) }

func (p *pull) keep(ctx context.Context, r leases.Resource) error {
	err := p.client.LeasesService().AddResource(ctx, leases.Lease{ID: p.lease}, r)
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("cannot lease %s: %w", r.ID, err)
	}
	return nil
}

func (p *pull) letGo(ctx context.Context) error {
	err := p.client.LeasesService().Delete(ctx, leases.Lease{ID: p.lease})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot end download: %w", err)
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

// takeOver moves what a former boot has downloaded to the lease of p.
func (p *pull) takeOver(ctx context.Context, old leases.Lease) error {
	service := p.client.LeasesService()
	held, err := service.ListResources(ctx, old)
	if errdefs.IsNotFound(err) { // another download of the image has
		return nil
	}
	if err != nil {
		return err
	}
	for _, r := range held {
		if err := p.keep(ctx, r); err != nil {
			return err
		}
	}
	if err := service.Delete(ctx, old); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// distrust removes what a former boot has unpacked for images that it did not complete: unknown to containerd, it may
// never have reached the medium. It is unpacked again.
func (i *Images) distrust(ctx context.Context) error {
	i.trusting.Lock()
	defer i.trusting.Unlock()
	snapshotter, err := i.Snapshotter(ctx)
	if err != nil {
		return err
	}
	begun, err := i.downloads(ctx)
	if err != nil {
		return err
	}
	service := i.client.LeasesService()
	for _, lease := range begun {
		if lease.Labels[bootLabel] == i.boot {
			continue
		}
		held, err := service.ListResources(ctx, lease)
		if errdefs.IsNotFound(err) { // somebody has taken it over
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot inspect download of an earlier boot: %w", err)
		}
		held = slices.DeleteFunc(held, func(r leases.Resource) bool { return r.Type != "snapshots/"+snapshotter })
		if err := i.removeSnapshots(ctx, snapshotter, held); err != nil {
			return fmt.Errorf("cannot remove what an earlier boot unpacked: %w", err)
		}
		for _, r := range held { // or it would be removed once more when it is there again
			if err := service.DeleteResource(ctx, lease, r); err != nil && !errdefs.IsNotFound(err) {
				return fmt.Errorf("cannot remove what an earlier boot unpacked: %w", err)
			}
		}
	}
	return nil
}

// removeSnapshots removes what nothing is based on, the upper ones first. A snapshot that carries others belongs to an
// image that was completed, and synced with it.
func (i *Images) removeSnapshots(ctx context.Context, snapshotter string, held []leases.Resource) error {
	service := i.client.SnapshotService(snapshotter)
	left := slices.Clone(held)
	for removed := true; removed; {
		removed = false
		for _, r := range slices.Clone(left) {
			err := service.Remove(ctx, r.ID)
			switch {
			case errdefs.IsFailedPrecondition(err):
				continue
			case err != nil && !errdefs.IsNotFound(err):
				return err
			}
			removed = true
			left = slices.DeleteFunc(left, func(l leases.Resource) bool { return l.ID == r.ID })
		}
	}
	return nil
}

// forgetDownloads throws away what has come of images that do not fit, and waits until the space is free.
func (i *Images) forgetDownloads(ctx context.Context, pulls []*pull) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	for _, p := range pulls {
		errs = append(errs, p.letGo(ctx))
	}
	return errors.Join(append(errs, i.collect(ctx))...)
}
