package external

import (
	"context"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

type imageRecords struct{ wire *wire }

const imagesService = "images.v1.Images/"

func (i imageRecords) Get(ctx context.Context, name string) (images.Image, error) {
	got, err := call(ctx, i.wire, imagesService+"Get", &imagesapi.GetImageRequest{Name: name}, new(imagesapi.GetImageResponse))
	return imageOf(got.GetImage()), err
}

func (i imageRecords) List(ctx context.Context, filters ...string) ([]images.Image, error) {
	got, err := call(ctx, i.wire, imagesService+"List", &imagesapi.ListImagesRequest{Filters: filters}, new(imagesapi.ListImagesResponse))
	return each(got.GetImages(), imageOf), err
}

func (i imageRecords) Create(ctx context.Context, image images.Image) (images.Image, error) {
	r := &imagesapi.CreateImageRequest{Image: imageToSend(image)}
	got, err := call(ctx, i.wire, imagesService+"Create", r, new(imagesapi.CreateImageResponse))
	return imageOf(got.GetImage()), err
}

func (i imageRecords) Update(ctx context.Context, image images.Image, fieldpaths ...string) (images.Image, error) {
	r := &imagesapi.UpdateImageRequest{Image: imageToSend(image), UpdateMask: mask(fieldpaths)}
	got, err := call(ctx, i.wire, imagesService+"Update", r, new(imagesapi.UpdateImageResponse))
	return imageOf(got.GetImage()), err
}

func (i imageRecords) Delete(ctx context.Context, name string, opts ...images.DeleteOpt) error {
	var o images.DeleteOptions
	for _, opt := range opts {
		if err := opt(ctx, &o); err != nil {
			return err
		}
	}
	r := &imagesapi.DeleteImageRequest{Name: name, Sync: o.Synchronous}
	if o.Target != nil {
		r.Target = descriptorToSend(*o.Target)
	}
	return do(ctx, i.wire, imagesService+"Delete", r)
}

func imageOf(i *imagesapi.Image) images.Image {
	return images.Image{
		Name: i.GetName(), Labels: i.GetLabels(), Target: descriptorOf(i.GetTarget()),
		CreatedAt: protobuf.FromTimestamp(i.GetCreatedAt()), UpdatedAt: protobuf.FromTimestamp(i.GetUpdatedAt()),
	}
}

func imageToSend(i images.Image) *imagesapi.Image {
	return &imagesapi.Image{
		Name: i.Name, Labels: i.Labels, Target: descriptorToSend(i.Target),
		CreatedAt: protobuf.ToTimestamp(i.CreatedAt), UpdatedAt: protobuf.ToTimestamp(i.UpdatedAt),
	}
}

func descriptorOf(d *types.Descriptor) v1.Descriptor {
	return v1.Descriptor{
		MediaType: d.GetMediaType(), Digest: digest.Digest(d.GetDigest()), Size: d.GetSize(), Annotations: d.GetAnnotations(),
	}
}

func descriptorToSend(d v1.Descriptor) *types.Descriptor {
	return &types.Descriptor{MediaType: d.MediaType, Digest: d.Digest.String(), Size: d.Size, Annotations: d.Annotations}
}

// mask names the fields that an update changes; nil: all.
func mask(fieldpaths []string) *fieldmaskpb.FieldMask {
	if len(fieldpaths) == 0 {
		return nil
	}
	return &fieldmaskpb.FieldMask{Paths: fieldpaths}
}

func each[In, Out any](list []In, of func(In) Out) []Out {
	var all []Out
	for _, item := range list {
		all = append(all, of(item))
	}
	return all
}
