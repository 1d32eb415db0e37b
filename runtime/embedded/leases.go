//go:build !slim

package embedded

import (
	"context"

	"github.com/containerd/containerd/v2/core/leases"

	"github.com/margolite/margolite/runtime/containerd"
)

type leaseManager struct{ direct leases.Manager }

func (m leaseManager) Create(ctx context.Context, lease containerd.Lease) (containerd.Lease, error) {
	name := leases.WithRandomID()
	if lease.ID != "" {
		name = leases.WithID(lease.ID)
	}
	created, err := m.direct.Create(within(ctx), name, leases.WithLabels(lease.Labels))
	return containerd.Lease(created), err
}

func (m leaseManager) Delete(ctx context.Context, id string, collect bool) error {
	var opts []leases.DeleteOpt
	if collect {
		opts = append(opts, leases.SynchronousDelete)
	}
	return m.direct.Delete(within(ctx), leases.Lease{ID: id}, opts...)
}

func (m leaseManager) List(ctx context.Context, filters ...string) ([]containerd.Lease, error) {
	all, err := m.direct.List(within(ctx), filters...)
	if err != nil {
		return nil, err
	}
	list := make([]containerd.Lease, len(all))
	for i, lease := range all {
		list[i] = containerd.Lease(lease)
	}
	return list, nil
}

func (m leaseManager) AddResource(ctx context.Context, id string, held containerd.Resource) error {
	return m.direct.AddResource(within(ctx), leases.Lease{ID: id}, leases.Resource{ID: held.ID, Type: held.Type})
}

func (m leaseManager) DeleteResource(ctx context.Context, id string, held containerd.Resource) error {
	return m.direct.DeleteResource(within(ctx), leases.Lease{ID: id}, leases.Resource{ID: held.ID, Type: held.Type})
}

func (m leaseManager) ListResources(ctx context.Context, id string) ([]containerd.Resource, error) {
	all, err := m.direct.ListResources(within(ctx), leases.Lease{ID: id})
	if err != nil {
		return nil, err
	}
	list := make([]containerd.Resource, len(all))
	for i, held := range all {
		list[i] = containerd.Resource{ID: held.ID, Type: held.Type}
	}
	return list, nil
}
