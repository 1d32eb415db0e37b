//go:build !slim

package embedded

import (
	"context"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"

	"github.com/margolite/margolite/runtime/containerd"
)

type snapshotter struct{ direct snapshots.Snapshotter }

func (s snapshotter) Stat(ctx context.Context, key string) (containerd.Snapshot, error) {
	info, err := s.direct.Stat(within(ctx), key)
	return fromSnapshot(info), err
}

func (s snapshotter) List(ctx context.Context, filters ...string) ([]containerd.Snapshot, error) {
	var list []containerd.Snapshot
	err := s.direct.Walk(within(ctx), func(_ context.Context, info snapshots.Info) error {
		list = append(list, fromSnapshot(info))
		return nil
	}, filters...)
	return list, err
}

func (s snapshotter) Mounts(ctx context.Context, key string) ([]containerd.Mount, error) {
	mounts, err := s.direct.Mounts(within(ctx), key)
	return fromMounts(mounts), err
}

func (s snapshotter) Prepare(ctx context.Context, key, parent string, labels map[string]string) ([]containerd.Mount, error) {
	mounts, err := s.direct.Prepare(within(ctx), key, parent, snapshots.WithLabels(labels))
	return fromMounts(mounts), err
}

func (s snapshotter) Commit(ctx context.Context, name, key string, labels map[string]string) error {
	return s.direct.Commit(within(ctx), name, key, snapshots.WithLabels(labels))
}

func (s snapshotter) Remove(ctx context.Context, key string) error {
	return s.direct.Remove(within(ctx), key)
}

// fromSnapshot relies on the kinds having the values of containerd.
func fromSnapshot(info snapshots.Info) containerd.Snapshot {
	return containerd.Snapshot{
		Kind:    containerd.SnapshotKind(info.Kind),
		Name:    info.Name,
		Parent:  info.Parent,
		Labels:  info.Labels,
		Created: info.Created,
		Updated: info.Updated,
	}
}

func fromMounts(mounts []mount.Mount) []containerd.Mount {
	list := make([]containerd.Mount, len(mounts))
	for i, m := range mounts {
		list[i] = containerd.Mount(m)
	}
	return list
}
