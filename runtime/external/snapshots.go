package external

import (
	"context"

	"github.com/margolite/margolite/runtime/containerd"
)

// filesystems are the snapshots of one snapshotter.
type filesystems struct {
	wire *wire
	name string
}

const snapshotsService = "snapshots.v1.Snapshots/"

func (r filesystems) Stat(ctx context.Context, key string) (got containerd.Snapshot, err error) {
	err = r.wire.call(ctx, snapshotsService+"Stat", texts(r.name, key), only(snapshot(&got)))
	return got, err
}

func (r filesystems) List(ctx context.Context, filters ...string) (all []containerd.Snapshot, err error) {
	err = r.wire.callAll(ctx, snapshotsService+"List", func(c *coder) {
		c.text(1, &r.name)
		c.texts(2, &filters)
	}, func(c *coder) { list(c, 1, &all, snapshot) })
	return all, err
}

func (r filesystems) Mounts(ctx context.Context, key string) (got []containerd.Mount, err error) {
	err = r.wire.call(ctx, snapshotsService+"Mounts", texts(r.name, key), func(c *coder) { list(c, 1, &got, mount) })
	return got, err
}

func (r filesystems) Prepare(ctx context.Context, key, parent string, labels map[string]string) (got []containerd.Mount, err error) {
	err = r.wire.call(ctx, snapshotsService+"Prepare", func(c *coder) {
		c.text(1, &r.name)
		c.text(2, &key)
		c.text(3, &parent)
		c.labels(4, &labels)
	}, func(c *coder) { list(c, 1, &got, mount) })
	return got, err
}

func (r filesystems) Commit(ctx context.Context, name, key string, labels map[string]string) error {
	return r.wire.call(ctx, snapshotsService+"Commit", func(c *coder) {
		c.text(1, &r.name)
		c.text(2, &name)
		c.text(3, &key)
		c.labels(4, &labels)
	}, nothing)
}

func (r filesystems) Remove(ctx context.Context, key string) error {
	return r.wire.call(ctx, snapshotsService+"Remove", texts(r.name, key), nothing)
}

func snapshot(of *containerd.Snapshot) message {
	return func(c *coder) {
		c.text(1, &of.Name)
		c.text(2, &of.Parent)
		kind := int32(of.Kind)
		c.int32(3, &kind)
		of.Kind = containerd.SnapshotKind(kind)
		c.time(4, &of.Created)
		c.time(5, &of.Updated)
		c.labels(6, &of.Labels)
	}
}
