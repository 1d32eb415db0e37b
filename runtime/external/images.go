package external

import (
	"context"

	"github.com/margolite/margolite/runtime/containerd"
)

type imageRecords struct{ wire *wire }

const imagesService = "images.v1.Images/"

func (r imageRecords) Get(ctx context.Context, name string) (got containerd.Image, err error) {
	err = r.wire.call(ctx, imagesService+"Get", texts(name), only(image(&got)))
	return got, err
}

func (r imageRecords) List(ctx context.Context, filters ...string) (all []containerd.Image, err error) {
	err = r.wire.call(ctx, imagesService+"List", those(filters), func(c *coder) { list(c, 1, &all, image) })
	return all, err
}

func (r imageRecords) Create(ctx context.Context, wanted containerd.Image) (got containerd.Image, err error) {
	err = r.wire.call(ctx, imagesService+"Create", only(image(&wanted)), only(image(&got)))
	return got, err
}

func (r imageRecords) Update(ctx context.Context, wanted containerd.Image, fields ...string) (got containerd.Image, err error) {
	err = r.wire.call(ctx, imagesService+"Update", func(c *coder) {
		c.message(1, image(&wanted))
		mask(c, 2, fields)
	}, only(image(&got)))
	return got, err
}

func (r imageRecords) Delete(ctx context.Context, name string) error {
	return r.wire.call(ctx, imagesService+"Delete", texts(name), nothing)
}

func image(of *containerd.Image) message {
	return func(c *coder) {
		c.text(1, &of.Name)
		c.labels(2, &of.Labels)
		c.message(3, descriptor(&of.Target))
		c.time(7, &of.CreatedAt)
		c.time(8, &of.UpdatedAt)
	}
}
