package ociimage

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Layout writes artifacts, by reference, as an archive of an OCI layout.
func Layout(images map[string]*Artifact) ([]byte, error) {
	entries, err := layoutEntries(images)
	if err != nil {
		return nil, err
	}
	return Tar(entries)
}

// Loadable is Layout for images of one platform, with the list that `docker load` reads: before version 25 it does not
// know layouts.
func Loadable(images map[string]*Artifact) ([]byte, error) {
	entries, err := layoutEntries(images)
	if err != nil {
		return nil, err
	}
	var list []saved
	for _, ref := range slices.Sorted(maps.Keys(images)) {
		manifest, err := images[ref].ReadManifest()
		if err != nil {
			return nil, err
		}
		image := saved{Config: blobName(manifest.Config.Digest), RepoTags: []string{ref}}
		for _, layer := range manifest.Layers {
			image.Layers = append(image.Layers, blobName(layer.Digest))
		}
		list = append(list, image)
	}
	return listed(entries, list)
}

func layoutEntries(images map[string]*Artifact) ([]Entry, error) {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	blobs := map[digest.Digest][]byte{}
	for _, ref := range slices.Sorted(maps.Keys(images)) {
		a := images[ref]
		index.Manifests = append(index.Manifests, ocispec.Descriptor{
			MediaType: a.MediaType, Digest: a.Digest, Size: int64(len(a.Manifest)),
			Annotations: map[string]string{"io.containerd.image.name": ref},
		})
		a.collect(blobs)
	}
	raw, err := json.Marshal(index)
	if err != nil {
		return nil, fmt.Errorf("cannot write index of layout: %w", err)
	}
	entries := []Entry{
		{Name: "oci-layout", Data: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{Name: "index.json", Data: raw},
	}
	for _, d := range slices.Sorted(maps.Keys(blobs)) {
		entries = append(entries, Entry{Name: blobName(d), Data: blobs[d]})
	}
	return entries, nil
}

func blobName(d digest.Digest) string { return "blobs/" + d.Algorithm().String() + "/" + d.Encoded() }

// saved is an image in the manifest.json of `docker save`.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// listed is an archive with the list that `docker load` reads.
func listed(entries []Entry, list []saved) ([]byte, error) {
	raw, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("cannot write manifest of archive: %w", err)
	}
	return Tar(append(entries, Entry{Name: "manifest.json", Data: raw}))
}

func (a *Artifact) collect(blobs map[digest.Digest][]byte) {
	blobs[a.Digest] = a.Manifest
	maps.Copy(blobs, a.Blobs)
	for _, part := range a.Parts {
		part.collect(blobs)
	}
}

// Saved writes images, by reference, as `docker save` did before it wrote layouts: layers are not compressed, and one
// that images share is a link in all but the first.
func Saved(images map[string]*Artifact) ([]byte, error) {
	var list []saved
	var entries []Entry
	first := map[digest.Digest]string{}
	for _, ref := range slices.Sorted(maps.Keys(images)) {
		a := images[ref]
		manifest, err := a.ReadManifest()
		if err != nil {
			return nil, err
		}
		image := saved{Config: manifest.Config.Digest.Encoded() + ".json", RepoTags: []string{ref}}
		entries = append(entries, Entry{Name: image.Config, Data: a.Blobs[manifest.Config.Digest]})
		for n, layer := range manifest.Layers {
			dir := fmt.Sprintf("%s-%d", a.Digest.Encoded(), n)
			entry := Entry{Name: dir + "/layer.tar"}
			if at, ok := first[layer.Digest]; ok {
				entry.Type, entry.Link = '2', "../"+at
			} else {
				plain, err := decompress(a.Blobs[layer.Digest], layer.MediaType)
				if err != nil {
					return nil, err
				}
				entry.Data = plain
				first[layer.Digest] = entry.Name
			}
			entries = append(entries, Entry{Name: dir + "/", Type: '5'}, entry)
			image.Layers = append(image.Layers, entry.Name)
		}
		list = append(list, image)
	}
	return listed(entries, list)
}

func decompress(blob []byte, mediaType string) ([]byte, error) {
	if mediaType == ocispec.MediaTypeImageLayer {
		return blob, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(blob))
	if err != nil {
		return nil, fmt.Errorf("cannot decompress layer: %w", err)
	}
	return io.ReadAll(r)
}
