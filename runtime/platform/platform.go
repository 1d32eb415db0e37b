// Package platform parses platform names such as linux/arm/v7 with containerd's library.
package platform

import (
	"errors"
	"path"

	"github.com/containerd/platforms"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxVariant bounds a variant such as v8.2 in characters: the library lists all versions below
// it, however many.
const maxVariant = 4

var errForm = errors.New("it is not of the form system/architecture/variant")

// Parse normalises the name of a platform: arm64 without a variant v8, arm with v7 by default.
func Parse(name string) (v1.Platform, error) {
	p, err := platforms.Parse(name)
	// The library accepts dots in an architecture or variant, and later writes them as a path.
	if err == nil && (len(p.Variant) > maxVariant || path.Clean(name) != name || p.OSVersion != "" || len(p.OSFeatures) > 0) {
		err = errForm
	}
	return platforms.Normalize(p), err
}
