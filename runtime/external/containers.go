package external

import (
	"context"

	"github.com/margolite/margolite/runtime/containerd"
)

type containerRecords struct{ wire *wire }

const containersService = "containers.v1.Containers/"

func (r containerRecords) Get(ctx context.Context, id string) (got containerd.Container, err error) {
	err = r.wire.call(ctx, containersService+"Get", texts(id), only(container(&got)))
	return got, err
}

// List gets one message for each container, so that their number is not limited by the length of one.
func (r containerRecords) List(ctx context.Context, filters ...string) (all []containerd.Container, err error) {
	err = r.wire.callAll(ctx, containersService+"ListStream", those(filters), func(c *coder) { list(c, 1, &all, container) })
	return all, err
}

func (r containerRecords) Create(ctx context.Context, wanted containerd.Container) (got containerd.Container, err error) {
	err = r.wire.call(ctx, containersService+"Create", only(container(&wanted)), only(container(&got)))
	return got, err
}

func (r containerRecords) Update(ctx context.Context, wanted containerd.Container, fields ...string) (got containerd.Container, err error) {
	err = r.wire.call(ctx, containersService+"Update", func(c *coder) {
		c.message(1, container(&wanted))
		mask(c, 2, fields)
	}, only(container(&got)))
	return got, err
}

func (r containerRecords) Delete(ctx context.Context, id string) error {
	return r.wire.call(ctx, containersService+"Delete", texts(id), nothing)
}

func container(of *containerd.Container) message {
	return func(c *coder) {
		c.text(1, &of.ID)
		c.labels(2, &of.Labels)
		c.text(3, &of.Image)
		c.message(4, func(c *coder) {
			c.text(1, &of.Runtime.Name)
			c.any(2, &of.Runtime.Options)
		})
		c.any(5, &of.Spec)
		c.text(6, &of.Snapshotter)
		c.text(7, &of.SnapshotKey)
		c.time(8, &of.CreatedAt)
		c.time(9, &of.UpdatedAt)
		c.values(10, &of.Extensions)
	}
}
