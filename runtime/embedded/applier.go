//go:build !slim

package embedded

import (
	"context"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/containerd"
)

type applier struct{ direct diff.Applier }

func (a applier) Apply(ctx context.Context, layer v1.Descriptor, mounts []containerd.Mount) (v1.Descriptor, error) {
	list := make([]mount.Mount, len(mounts))
	for i, m := range mounts {
		list[i] = mount.Mount(m)
	}
	return a.direct.Apply(within(ctx), layer, list)
}
