//go:build !slim

package embedded

import (
	"context"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"

	"github.com/margolite/margolite/runtime/containerd"
)

type containerStore struct{ direct containers.Store }

func (s containerStore) Get(ctx context.Context, id string) (containerd.Container, error) {
	c, err := s.direct.Get(within(ctx), id)
	return fromContainer(c), err
}

func (s containerStore) List(ctx context.Context, filters ...string) ([]containerd.Container, error) {
	all, err := s.direct.List(within(ctx), filters...)
	if err != nil {
		return nil, err
	}
	list := make([]containerd.Container, len(all))
	for i, c := range all {
		list[i] = fromContainer(c)
	}
	return list, nil
}

func (s containerStore) Create(ctx context.Context, c containerd.Container) (containerd.Container, error) {
	created, err := s.direct.Create(within(ctx), toContainer(c))
	return fromContainer(created), err
}

func (s containerStore) Update(ctx context.Context, c containerd.Container, fields ...string) (containerd.Container, error) {
	updated, err := s.direct.Update(within(ctx), toContainer(c), fields...)
	return fromContainer(updated), err
}

func (s containerStore) Delete(ctx context.Context, id string) error {
	return s.direct.Delete(within(ctx), id)
}

func fromContainer(c containers.Container) containerd.Container {
	out := containerd.Container{
		ID:          c.ID,
		Labels:      c.Labels,
		Image:       c.Image,
		Runtime:     containerd.Runtime{Name: c.Runtime.Name, Options: fromAny(c.Runtime.Options)},
		Spec:        fromAny(c.Spec),
		SnapshotKey: c.SnapshotKey,
		Snapshotter: c.Snapshotter,
		CreatedAt:   c.CreatedAt,
		UpdatedAt:   c.UpdatedAt,
	}
	for name, extension := range c.Extensions {
		if extension == nil {
			continue
		}
		if out.Extensions == nil {
			out.Extensions = make(map[string]containerd.Any, len(c.Extensions))
		}
		out.Extensions[name] = *fromAny(extension)
	}
	return out
}

func toContainer(c containerd.Container) containers.Container {
	out := containers.Container{
		ID:          c.ID,
		Labels:      c.Labels,
		Image:       c.Image,
		Runtime:     containers.RuntimeInfo{Name: c.Runtime.Name},
		SnapshotKey: c.SnapshotKey,
		Snapshotter: c.Snapshotter,
		CreatedAt:   c.CreatedAt,
		UpdatedAt:   c.UpdatedAt,
	}
	// An interface with a nil pointer in it would not be nil.
	if c.Runtime.Options != nil {
		out.Runtime.Options = toAny(c.Runtime.Options)
	}
	if c.Spec != nil {
		out.Spec = toAny(c.Spec)
	}
	for name, extension := range c.Extensions {
		if out.Extensions == nil {
			out.Extensions = make(map[string]typeurl.Any, len(c.Extensions))
		}
		out.Extensions[name] = toAny(&extension)
	}
	return out
}
