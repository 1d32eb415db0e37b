package external

import (
	"context"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/containerd"
)

type differ struct{ wire *wire }

func (r differ) Apply(ctx context.Context, layer v1.Descriptor, mounts []containerd.Mount) (got v1.Descriptor, err error) {
	err = r.wire.call(ctx, "diff.v1.Diff/Apply", func(c *coder) {
		c.message(1, descriptor(&layer))
		list(c, 2, &mounts, mount)
	}, only(descriptor(&got)))
	return got, err
}

func descriptor(of *v1.Descriptor) message {
	return func(c *coder) {
		c.text(1, &of.MediaType)
		c.text(2, (*string)(&of.Digest))
		c.int64(3, &of.Size)
		c.labels(5, &of.Annotations)
	}
}

func mount(of *containerd.Mount) message {
	return func(c *coder) {
		c.text(1, &of.Type)
		c.text(2, &of.Source)
		c.text(3, &of.Target)
		c.texts(4, &of.Options)
	}
}
