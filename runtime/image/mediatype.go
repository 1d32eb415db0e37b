package image

import (
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/registry"
)

// isConfig says that a media type is that of the configuration of an image.
func isConfig(mediaType string) bool {
	return mediaType == v1.MediaTypeImageConfig || mediaType == "application/vnd.docker.container.image.v1+json"
}

// isLayer says that a media type is that of a layer, of OCI or of Docker; whether it can be unpacked is containerd's.
func isLayer(mediaType string) bool {
	if strings.HasPrefix(mediaType, "application/vnd.oci.image.layer.") {
		return true
	}
	kind, _, _ := strings.Cut(mediaType, "+")
	switch kind {
	case "application/vnd.docker.image.rootfs.diff.tar",
		"application/vnd.docker.image.rootfs.diff.tar.gzip",
		"application/vnd.docker.image.rootfs.diff.tar.zstd",
		"application/vnd.docker.image.rootfs.foreign.diff.tar",
		"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
		"application/vnd.erofs.layer.v1":
		return true
	}
	return false
}

// isUncompressed says that a layer is as big as it unpacks to. Docker's type without a suffix does not say so.
func isUncompressed(mediaType string) bool {
	kind, packed, _ := strings.Cut(mediaType, "+")
	switch kind {
	case v1.MediaTypeImageLayer, "application/vnd.oci.image.layer.nondistributable.v1.tar":
		return !strings.Contains(packed, "gzip") && !strings.Contains(packed, "zstd")
	}
	return false
}

// ingestOf is the name under which containerd keeps what has come of a part. It is containerd's own, and has to stay:
// what was begun before an update of this program is gone on with after it.
func ingestOf(desc v1.Descriptor) string {
	key := desc.Digest.String()
	if name, ok := desc.Annotations[v1.AnnotationRefName]; ok {
		key = name + "@" + key
	}
	switch mediaType := desc.MediaType; {
	case registry.IsManifest(mediaType):
		return "manifest-" + key
	case registry.IsIndex(mediaType):
		return "index-" + key
	case isLayer(mediaType):
		return "layer-" + key
	case isConfig(mediaType):
		return "config-" + key
	}
	return "unknown-" + key
}
