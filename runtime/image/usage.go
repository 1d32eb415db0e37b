package image

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Size is how many bytes an image has that Pull has brought, compressed, by what
// its manifests say; of each platform that it was brought for. What it shares with
// others is counted as well.
func (i *Images) Size(ctx context.Context, name string) (int64, error) {
	size, err := i.size(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("cannot measure image %s: %w", name, err)
	}
	return size, nil
}

func (i *Images) size(ctx context.Context, name string) (int64, error) {
	record, err := i.client.ImageService().Get(ctx, name)
	if err != nil {
		return 0, err
	}
	root, err := i.client.ContentStore().Info(ctx, record.Target.Digest)
	if err != nil {
		return 0, err
	}
	// An index is labelled with those of its manifests that are here, see link.
	manifests := make(map[digest.Digest]bool)
	for key, value := range root.Labels {
		if strings.HasPrefix(key, contentRef+"m.") {
			manifests[digest.Digest(value)] = true
		}
	}
	size := root.Size
	if len(manifests) == 0 {
		size, manifests[root.Digest] = 0, true
	}
	for _, d := range slices.Sorted(maps.Keys(manifests)) {
		data, err := i.read(ctx, v1.Descriptor{Digest: d}, maxManifest)
		if err != nil {
			return 0, err
		}
		config, layers, err := partsOf(data)
		if err != nil {
			return 0, err
		}
		size += int64(len(data)) + max(config.Size, 0)
		for _, layer := range layers {
			size += layer.Size
		}
	}
	return size, nil
}
