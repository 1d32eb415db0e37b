package registry

import (
	"net/http"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Media types of Docker, from before those of OCI.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerOld      = "application/vnd.docker.distribution.manifest.v1+" // json, or prettyjws
)

// manifests are asked for when it is not known what a reference stands for.
const manifests = dockerManifest + ", " + dockerIndex + ", " + v1.MediaTypeImageManifest + ", " + v1.MediaTypeImageIndex + ", */*"

// IsManifest says that a media type is that of a manifest of one image or artifact.
func IsManifest(mediaType string) bool {
	return mediaType == v1.MediaTypeImageManifest || mediaType == dockerManifest
}

// IsIndex says that a media type is that of a list of manifests.
func IsIndex(mediaType string) bool {
	return mediaType == v1.MediaTypeImageIndex || mediaType == dockerIndex
}

// typeOf is the media type of what a registry answers.
func typeOf(answer *http.Response) string {
	mediaType, _, _ := strings.Cut(answer.Header.Get("Content-Type"), ";")
	return strings.TrimSpace(mediaType)
}

// isOld says that a media type is that of Docker's first manifests, which hold no digests of what they describe. There
// are registries that call them text.
func isOld(mediaType string) bool {
	return strings.HasPrefix(mediaType, dockerOld) || mediaType == "text/plain"
}
