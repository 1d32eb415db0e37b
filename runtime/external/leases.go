package external

import (
	"context"

	"github.com/margolite/margolite/runtime/containerd"
)

type leaseRecords struct{ wire *wire }

const leasesService = "leases.v1.Leases/"

func (r leaseRecords) Create(ctx context.Context, wanted containerd.Lease) (got containerd.Lease, err error) {
	err = r.wire.call(ctx, leasesService+"Create", func(c *coder) {
		c.text(1, &wanted.ID)
		c.labels(3, &wanted.Labels)
	}, only(lease(&got)))
	return got, err
}

func (r leaseRecords) Delete(ctx context.Context, id string, collect bool) error {
	return r.wire.call(ctx, leasesService+"Delete", func(c *coder) {
		c.text(1, &id)
		c.bool(2, &collect)
	}, nothing)
}

func (r leaseRecords) List(ctx context.Context, filters ...string) (all []containerd.Lease, err error) {
	err = r.wire.call(ctx, leasesService+"List", those(filters), func(c *coder) { list(c, 1, &all, lease) })
	return all, err
}

func (r leaseRecords) AddResource(ctx context.Context, id string, held containerd.Resource) error {
	return r.wire.call(ctx, leasesService+"AddResource", leased(id, held), nothing)
}

func (r leaseRecords) DeleteResource(ctx context.Context, id string, held containerd.Resource) error {
	return r.wire.call(ctx, leasesService+"DeleteResource", leased(id, held), nothing)
}

func (r leaseRecords) ListResources(ctx context.Context, id string) (all []containerd.Resource, err error) {
	err = r.wire.call(ctx, leasesService+"ListResources", texts(id), func(c *coder) { list(c, 1, &all, resource) })
	return all, err
}

func leased(id string, held containerd.Resource) message {
	return func(c *coder) {
		c.text(1, &id)
		c.message(2, resource(&held))
	}
}

func lease(of *containerd.Lease) message {
	return func(c *coder) {
		c.text(1, &of.ID)
		c.time(2, &of.CreatedAt)
		c.labels(3, &of.Labels)
	}
}

func resource(of *containerd.Resource) message {
	return func(c *coder) {
		c.text(1, &of.ID)
		c.text(2, &of.Type)
	}
}
