package external

import (
	"context"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/protobuf"
)

// filesystems are the snapshots of one snapshotter.
type filesystems struct {
	wire *wire
	name string
}

const snapshotsService = "snapshots.v1.Snapshots/"

func (f filesystems) Stat(ctx context.Context, key string) (snapshots.Info, error) {
	r := &snapshotsapi.StatSnapshotRequest{Snapshotter: f.name, Key: key}
	got, err := call(ctx, f.wire, snapshotsService+"Stat", r, new(snapshotsapi.StatSnapshotResponse))
	return snapshotOf(got.GetInfo()), err
}

func (f filesystems) Update(ctx context.Context, info snapshots.Info, fieldpaths ...string) (snapshots.Info, error) {
	r := &snapshotsapi.UpdateSnapshotRequest{
		Snapshotter: f.name, UpdateMask: mask(fieldpaths),
		Info: &snapshotsapi.Info{Name: info.Name, Labels: info.Labels}, // the rest cannot be changed
	}
	got, err := call(ctx, f.wire, snapshotsService+"Update", r, new(snapshotsapi.UpdateSnapshotResponse))
	return snapshotOf(got.GetInfo()), err
}

func (f filesystems) Usage(ctx context.Context, key string) (snapshots.Usage, error) {
	r := &snapshotsapi.UsageRequest{Snapshotter: f.name, Key: key}
	got, err := call(ctx, f.wire, snapshotsService+"Usage", r, new(snapshotsapi.UsageResponse))
	return snapshots.Usage{Inodes: got.GetInodes(), Size: got.GetSize()}, err
}

func (f filesystems) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	r := &snapshotsapi.MountsRequest{Snapshotter: f.name, Key: key}
	got, err := call(ctx, f.wire, snapshotsService+"Mounts", r, new(snapshotsapi.MountsResponse))
	return mount.FromProto(got.GetMounts()), err
}

func (f filesystems) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	info, err := snapshotWith(opts)
	if err != nil {
		return nil, err
	}
	r := &snapshotsapi.PrepareSnapshotRequest{Snapshotter: f.name, Key: key, Parent: parent, Labels: info.Labels}
	got, err := call(ctx, f.wire, snapshotsService+"Prepare", r, new(snapshotsapi.PrepareSnapshotResponse))
	return mount.FromProto(got.GetMounts()), err
}

func (f filesystems) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	info, err := snapshotWith(opts)
	if err != nil {
		return nil, err
	}
	r := &snapshotsapi.ViewSnapshotRequest{Snapshotter: f.name, Key: key, Parent: parent, Labels: info.Labels}
	got, err := call(ctx, f.wire, snapshotsService+"View", r, new(snapshotsapi.ViewSnapshotResponse))
	return mount.FromProto(got.GetMounts()), err
}

func (f filesystems) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	info, err := snapshotWith(opts)
	if err != nil {
		return err
	}
	return do(ctx, f.wire, snapshotsService+"Commit", &snapshotsapi.CommitSnapshotRequest{
		Snapshotter: f.name, Name: name, Key: key, Labels: info.Labels, Parent: info.Parent,
	})
}

func (f filesystems) Remove(ctx context.Context, key string) error {
	return do(ctx, f.wire, snapshotsService+"Remove", &snapshotsapi.RemoveSnapshotRequest{Snapshotter: f.name, Key: key})
}

func (f filesystems) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	r := &snapshotsapi.ListSnapshotsRequest{Snapshotter: f.name, Filters: filters}
	return receiveAll(ctx, f.wire, snapshotsService+"List", r, func(got *snapshotsapi.ListSnapshotsResponse) error {
		for _, info := range got.GetInfo() {
			if err := fn(ctx, snapshotOf(info)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Close does nothing: the snapshotter is containerd's.
func (f filesystems) Close() error { return nil }

func snapshotWith(opts []snapshots.Opt) (info snapshots.Info, err error) {
	for _, opt := range opts {
		if err := opt(&info); err != nil {
			return info, err
		}
	}
	return info, nil
}

func snapshotOf(i *snapshotsapi.Info) snapshots.Info {
	kind := snapshots.KindCommitted
	switch i.GetKind() {
	case snapshotsapi.Kind_ACTIVE:
		kind = snapshots.KindActive
	case snapshotsapi.Kind_VIEW:
		kind = snapshots.KindView
	}
	return snapshots.Info{
		Kind: kind, Name: i.GetName(), Parent: i.GetParent(), Labels: i.GetLabels(),
		Created: protobuf.FromTimestamp(i.GetCreatedAt()), Updated: protobuf.FromTimestamp(i.GetUpdatedAt()),
	}
}
