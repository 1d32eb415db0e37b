// Package platform reads the names of platforms that come with a Compose file, such as
// linux/arm/v7, with containerd's library.
package platform

import (
	"errors"
	"path"

	"github.com/containerd/platforms"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxVariant bounds the variant of a platform, as v8.2, in characters: the library lists
// all versions below it, however many those are.
const maxVariant = 4

var errForm = errors.New("it is not of the form system/architecture/variant")

// Parse reads the name of a platform in the normal form: arm64 has no variant v8, and
// arm has v7 where none is named.
func Parse(name string) (v1.Platform, error) {
	p, err := platforms.Parse(name)
	// It takes dots for an architecture or a variant, and then writes them as a path.
	if err == nil && (len(p.Variant) > maxVariant || path.Clean(name) != name || p.OSVersion != "" || len(p.OSFeatures) > 0) {
		err = errForm
	}
	return platforms.Normalize(p), err
}
