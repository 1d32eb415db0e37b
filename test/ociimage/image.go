package ociimage

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Artifact is anything a registry can hold: a manifest and the blobs it names.
type Artifact struct {
	MediaType string
	Manifest  []byte
	Digest    digest.Digest // of Manifest
	Blobs     map[digest.Digest][]byte
	Parts     []*Artifact // the manifests an index names
}

// Image describes a container image.
type Image struct {
	Platform ocispec.Platform // the zero value is this machine's
	Layers   []Layer
	Config   ocispec.ImageConfig
}

// Layer is one layer of an image.
type Layer struct {
	Entries      []Entry
	Archive      []byte // a tar archive that somebody else made, in place of Entries
	Uncompressed bool
	// Packed is what is downloaded of an Archive, of a media type, whatever that says; nil: the archive, compressed by gzip.
	Packed    []byte
	MediaType string
}

// Executable is the entry of a program at an absolute path of the image.
func Executable(name string, program []byte) Entry {
	return Entry{Name: strings.TrimPrefix(name, "/"), Mode: 0o755, Data: program}
}

// Padding is a layer with one file of size bytes that no compressor makes
// smaller. It gives downloads a length at which progress can be seen.
func Padding(size int) Layer {
	data := make([]byte, size)
	// A fixed seed: the layer has the same digest wherever it is made.
	source := rand.NewChaCha8([32]byte{'m', 'a', 'r', 'g', 'o'})
	_, _ = source.Read(data) // documented to never fail
	return Layer{Entries: []Entry{{Name: "padding", Data: data}}, Uncompressed: true}
}

// Build makes the image.
func Build(image Image) (*Artifact, error) {
	image.Platform.OS = cmp.Or(image.Platform.OS, "linux")
	image.Platform.Architecture = cmp.Or(image.Platform.Architecture, runtime.GOARCH)
	config := ocispec.Image{
		Platform: image.Platform,
		Config:   image.Config,
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{}},
	}
	artifact := &Artifact{}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Layers:    []ocispec.Descriptor{},
	}
	for i, layer := range image.Layers {
		plain := layer.Archive
		if plain == nil {
			var err error
			if plain, err = Tar(layer.Entries); err != nil {
				return nil, fmt.Errorf("cannot build layer %d: %w", i, err)
			}
		}
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(plain))
		blob, mediaType := plain, ocispec.MediaTypeImageLayer
		switch {
		case layer.Packed != nil:
			blob, mediaType = layer.Packed, layer.MediaType
		case !layer.Uncompressed:
			var err error
			if blob, err = Gzip(plain); err != nil {
				return nil, fmt.Errorf("cannot build layer %d: %w", i, err)
			}
			mediaType = ocispec.MediaTypeImageLayerGzip
		}
		manifest.Layers = append(manifest.Layers, artifact.Add(mediaType, blob))
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("cannot write image configuration: %w", err)
	}
	manifest.Config = artifact.Add(ocispec.MediaTypeImageConfig, raw)
	return artifact, artifact.Seal(manifest.MediaType, manifest)
}

// Index joins images of several platforms under one name. The platforms are
// those their configurations state.
func Index(images ...*Artifact) (*Artifact, error) {
	index := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{},
	}
	for _, image := range images {
		manifest, err := image.ReadManifest()
		if err != nil {
			return nil, err
		}
		var config ocispec.Image
		if err := json.Unmarshal(image.Blobs[manifest.Config.Digest], &config); err != nil {
			return nil, fmt.Errorf("cannot read image configuration: %w", err)
		}
		index.Manifests = append(index.Manifests, ocispec.Descriptor{
			MediaType: image.MediaType,
			Digest:    image.Digest,
			Size:      int64(len(image.Manifest)),
			Platform:  &config.Platform,
		})
	}
	artifact := &Artifact{Parts: images}
	return artifact, artifact.Seal(index.MediaType, index)
}

// ReadManifest reads the manifest of an image.
func (a *Artifact) ReadManifest() (m ocispec.Manifest, err error) {
	if err = json.Unmarshal(a.Manifest, &m); err != nil {
		err = fmt.Errorf("cannot read image manifest: %w", err)
	}
	return m, err
}

// Add keeps a blob and gives its descriptor.
func (a *Artifact) Add(mediaType string, blob []byte) ocispec.Descriptor {
	d := digest.FromBytes(blob)
	if a.Blobs == nil {
		a.Blobs = map[digest.Digest][]byte{}
	}
	a.Blobs[d] = blob
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(blob))}
}

// Seal writes the manifest, after which the artifact has a digest.
func (a *Artifact) Seal(mediaType string, manifest any) error {
	raw, err := json.Marshal(manifest)
	if err != nil {
		return fmt.Errorf("cannot write manifest: %w", err)
	}
	a.MediaType, a.Manifest, a.Digest = mediaType, raw, digest.FromBytes(raw)
	return nil
}
