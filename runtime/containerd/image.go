package containerd

import (
	"context"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// ImageStore keeps the names of images.
type ImageStore interface {
	Get(ctx context.Context, name string) (Image, error)
	List(ctx context.Context, filters ...string) ([]Image, error)
	Create(context.Context, Image) (Image, error)
	// Update changes the fields that are named, as "target" or "labels.KEY"; all
	// of them if none is.
	Update(ctx context.Context, image Image, fields ...string) (Image, error)
	Delete(ctx context.Context, name string) error
}

// Image is a name for what is in the content store.
type Image struct {
	Name      string
	Labels    map[string]string
	Target    v1.Descriptor
	CreatedAt time.Time
	UpdatedAt time.Time
}
