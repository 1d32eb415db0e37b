package ociimage

import (
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Media types of a Compose component (PKG-02).
const (
	ComponentArtifactType = "application/vnd.org.margo.component.compose+json"
	ComponentLayerType    = "application/vnd.org.margo.component.compose.tar+gzip"
)

// Component describes a Compose component package. With Name, Version and Files
// alone it is made exactly as the standard says; every other field replaces one
// part of it by something else, for tests of what must be refused.
type Component struct {
	Name    string // the one top-level directory of the archive
	Version string // SemVer without v, equal to the tag
	Files   Files  // what the directory holds; compose.yaml among it

	// Archive replaces the whole layer: the bytes need not even be an archive.
	// TarGzip makes one of arbitrary entries.
	Archive []byte
	// ExtraEntries are appended to the regular archive: links that lead
	// outside, names with "..", devices, a second top-level directory.
	ExtraEntries []Entry
	// ExtraLayers follow the one that is allowed.
	ExtraLayers [][]byte
	// NoLayer leaves the component without any layer.
	NoLayer bool
	// ArtifactType and LayerType replace the media types; "-" leaves them out.
	ArtifactType, LayerType string
	// SizeError is added to the size that the layer's descriptor states.
	SizeError int64
}

// Build makes the component (protocol 4.1 and 4.2).
func (c Component) Build() (*Artifact, error) {
	artifact := &Artifact{Blobs: map[digest.Digest][]byte{}}
	manifest := ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: replaced(c.ArtifactType, ComponentArtifactType),
		Config:       artifact.add(ocispec.MediaTypeEmptyJSON, []byte("{}")),
		Layers:       []ocispec.Descriptor{},
		Annotations:  c.annotations(),
	}
	if !c.NoLayer {
		archive, err := c.archive()
		if err != nil {
			return nil, err
		}
		for _, blob := range append([][]byte{archive}, c.ExtraLayers...) {
			layer := artifact.add(replaced(c.LayerType, ComponentLayerType), blob)
			layer.Size += c.SizeError
			layer.Annotations = c.annotations()
			manifest.Layers = append(manifest.Layers, layer)
		}
	}
	return artifact, artifact.seal(manifest.MediaType, manifest)
}

func (c Component) archive() ([]byte, error) {
	if c.Archive != nil {
		return c.Archive, nil
	}
	return TarGzip(append(c.Files.under(c.Name), c.ExtraEntries...))
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

func replaced(with, standard string) string {
	switch with {
	case "":
		return standard
	case "-":
		return ""
	default:
		return with
	}
}
