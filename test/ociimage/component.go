package ociimage

import (
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Media types of a Compose component (PKG-02).
const (
	componentArtifactType = "application/vnd.org.margo.component.compose+json"
	componentLayerType    = "application/vnd.org.margo.component.compose.tar+gzip"
)

// Component describes a Compose component package.
type Component struct {
	Name    string // the one top-level directory of the archive
	Version string // SemVer without v, equal to the tag
	Files   Files  // what the directory holds; compose.yaml among it
}

// Build makes the component (protocol 4.1 and 4.2).
func (c Component) Build() (*Artifact, error) {
	archive, err := TarGzip(c.Files.under(c.Name))
	if err != nil {
		return nil, err
	}
	artifact := &Artifact{}
	layer := artifact.Add(componentLayerType, archive)
	layer.Annotations = c.annotations()
	return artifact, artifact.Seal(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: componentArtifactType,
		Config:       artifact.Add(ocispec.MediaTypeEmptyJSON, []byte("{}")),
		Layers:       []ocispec.Descriptor{layer},
		Annotations:  c.annotations(),
	})
}

// annotations are written on the manifest and on its layer: the standard's text
// asks for the one and its example does the other.
func (c Component) annotations() map[string]string {
	return map[string]string{
		"org.margo.component.type":         "compose",
		"org.margo.component.version":      c.Version,
		ocispec.AnnotationTitle:            c.Name,
		ocispec.AnnotationVersion:          c.Version,
		"org.opencontainers.image.authors": "margolite",
	}
}
