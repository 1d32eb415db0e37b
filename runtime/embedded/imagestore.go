//go:build !slim

package embedded

import (
	"context"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/margolite/margolite/runtime/containerd"
)

type imageStore struct{ direct images.Store }

func (s imageStore) Get(ctx context.Context, name string) (containerd.Image, error) {
	image, err := s.direct.Get(within(ctx), name)
	return containerd.Image(image), err
}

func (s imageStore) List(ctx context.Context, filters ...string) ([]containerd.Image, error) {
	all, err := s.direct.List(within(ctx), filters...)
	if err != nil {
		return nil, err
	}
	list := make([]containerd.Image, len(all))
	for i, image := range all {
		list[i] = containerd.Image(image)
	}
	return list, nil
}

func (s imageStore) Create(ctx context.Context, image containerd.Image) (containerd.Image, error) {
	created, err := s.direct.Create(within(ctx), images.Image(image))
	return containerd.Image(created), err
}

func (s imageStore) Update(ctx context.Context, image containerd.Image, fields ...string) (containerd.Image, error) {
	updated, err := s.direct.Update(within(ctx), images.Image(image), fields...)
	return containerd.Image(updated), err
}

func (s imageStore) Delete(ctx context.Context, name string) error {
	return s.direct.Delete(within(ctx), name)
}
