package external

import (
	"context"

	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/protobuf"
)

type leaseRecords struct{ wire *wire }

const leasesService = "leases.v1.Leases/"

func (l leaseRecords) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
	var wanted leases.Lease
	for _, opt := range opts {
		if err := opt(&wanted); err != nil {
			return leases.Lease{}, err
		}
	}
	r := &leasesapi.CreateRequest{ID: wanted.ID, Labels: wanted.Labels}
	got, err := call(ctx, l.wire, leasesService+"Create", r, new(leasesapi.CreateResponse))
	return leaseOf(got.GetLease()), err
}

func (l leaseRecords) Delete(ctx context.Context, lease leases.Lease, opts ...leases.DeleteOpt) error {
	var o leases.DeleteOptions
	for _, opt := range opts {
		if err := opt(ctx, &o); err != nil {
			return err
		}
	}
	return do(ctx, l.wire, leasesService+"Delete", &leasesapi.DeleteRequest{ID: lease.ID, Sync: o.Synchronous})
}

func (l leaseRecords) List(ctx context.Context, filters ...string) ([]leases.Lease, error) {
	got, err := call(ctx, l.wire, leasesService+"List", &leasesapi.ListRequest{Filters: filters}, new(leasesapi.ListResponse))
	return each(got.GetLeases(), leaseOf), err
}

func (l leaseRecords) AddResource(ctx context.Context, lease leases.Lease, held leases.Resource) error {
	return do(ctx, l.wire, leasesService+"AddResource", &leasesapi.AddResourceRequest{
		ID: lease.ID, Resource: &leasesapi.Resource{ID: held.ID, Type: held.Type},
	})
}

func (l leaseRecords) DeleteResource(ctx context.Context, lease leases.Lease, held leases.Resource) error {
	return do(ctx, l.wire, leasesService+"DeleteResource", &leasesapi.DeleteResourceRequest{
		ID: lease.ID, Resource: &leasesapi.Resource{ID: held.ID, Type: held.Type},
	})
}

func (l leaseRecords) ListResources(ctx context.Context, lease leases.Lease) ([]leases.Resource, error) {
	r := &leasesapi.ListResourcesRequest{ID: lease.ID}
	got, err := call(ctx, l.wire, leasesService+"ListResources", r, new(leasesapi.ListResourcesResponse))
	return each(got.GetResources(), func(held *leasesapi.Resource) leases.Resource {
		return leases.Resource{ID: held.GetID(), Type: held.GetType()}
	}), err
}

func leaseOf(l *leasesapi.Lease) leases.Lease {
	return leases.Lease{ID: l.GetID(), CreatedAt: protobuf.FromTimestamp(l.GetCreatedAt()), Labels: l.GetLabels()}
}
