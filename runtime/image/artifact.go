package image

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// ArtifactLimits are the requirements of an artifact.
type ArtifactLimits struct {
	Size  int64  // bytes of its layer, at most
	Trust *Trust // nil: no signature is required
}

const (
	componentType  = "application/vnd.org.margo.component.compose+json"
	componentLayer = "application/vnd.org.margo.component.compose.tar+gzip"
)

// Artifact downloads the package of a component in a registry (PKG-01), and returns its one layer and
// the digest of its manifest, both verified (PKG-04). A required signature comes first and from the
// same place. Nothing is kept in containerd. tag may also be a digest.
func (i *Images) Artifact(ctx context.Context, repository, tag string, l ArtifactLimits, progress func(Progress)) (data []byte, origin digest.Digest, err error) {
	object := repository + ":" + tag
	ref, err := artifactReference(repository, tag)
	if err != nil {
		return nil, "", fail(object, bad(err))
	}
	q, err := l.Trust.inquest(ref, i.o.Logger)
	if err != nil {
		return nil, "", fail(object, err)
	}
	s, err := i.open(ref)
	if err != nil {
		return nil, "", fail(object, err)
	}
	// Another host is asked for everything: a mirror with half an artifact has none.
	err = s.try(ctx, i.o.Logger, func(h host) (err error) {
		data, origin, err = h.artifact(ctx, ref, q, l, newMeter(object, progress, new(sync.Mutex)))
		return err
	})
	if err != nil {
		return nil, "", fail(object, err)
	}
	if q != nil {
		i.o.Logger.Info("signature of package verified", "package", object, "digest", origin.String(), "signer", q.signer)
	}
	return data, origin, nil
}

func artifactReference(repository, tag string) (reference.Named, error) {
	named, err := reference.ParseNormalizedNamed(strings.TrimPrefix(repository, "oci://"))
	if err != nil {
		return nil, fmt.Errorf("cannot read repository: %w", err)
	}
	if !reference.IsNameOnly(named) {
		return nil, fmt.Errorf("repository must not have a tag or a digest")
	}
	if d, err := digest.Parse(tag); err == nil {
		return reference.WithDigest(named, d)
	}
	return reference.WithTag(named, tag)
}

// artifact is Artifact for one host; q is nil if no signature is required.
func (h host) artifact(ctx context.Context, ref reference.Named, q *inquest, l ArtifactLimits, m *meter) ([]byte, digest.Digest, error) {
	root, err := h.Resolve(ctx, ref)
	if err != nil {
		return nil, "", remote{err}
	}
	if root.MediaType != v1.MediaTypeImageManifest {
		return nil, "", bad(fmt.Errorf("media type of manifest is %.100q, not %q", root.MediaType, v1.MediaTypeImageManifest))
	}
	if q != nil {
		q.digest = root.Digest
		if err := h.inquire(ctx, q); err != nil {
			return nil, "", err
		}
	}
	manifest, err := h.bytes(ctx, ref, root, maxManifest, m)
	if err != nil {
		return nil, "", err
	}
	layer, err := componentOf(manifest)
	if err != nil {
		return nil, "", err
	}
	data, err := h.bytes(ctx, ref, layer, l.Size, m)
	return data, root.Digest, err
}

// componentOf returns the layer of a manifest that is a component's package only (PKG-02, PKG-03).
func componentOf(data []byte) (v1.Descriptor, error) {
	var manifest v1.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		return v1.Descriptor{}, bad(fmt.Errorf("cannot read manifest: %w", err))
	}
	switch {
	case manifest.MediaType != "" && !strings.EqualFold(manifest.MediaType, v1.MediaTypeImageManifest):
		return v1.Descriptor{}, bad(fmt.Errorf("media type in manifest is %.100q", manifest.MediaType))
	case manifest.ArtifactType != componentType:
		return v1.Descriptor{}, bad(fmt.Errorf("artifact type is %.100q, not %q (PKG-02)", manifest.ArtifactType, componentType))
	case len(manifest.Layers) != 1:
		return v1.Descriptor{}, bad(fmt.Errorf("artifact has %d layers, not 1 (PKG-02)", len(manifest.Layers)))
	case manifest.Layers[0].MediaType != componentLayer:
		return v1.Descriptor{}, bad(fmt.Errorf("media type of layer is %.100q, not %q (PKG-02)", manifest.Layers[0].MediaType, componentLayer))
	}
	layer := manifest.Layers[0]
	if err := layer.Digest.Validate(); err != nil {
		return v1.Descriptor{}, bad(fmt.Errorf("digest of layer: %w", err))
	}
	layer.URLs, layer.Data = nil, nil
	return layer, nil
}

// bytes downloads and verifies a small part in memory.
func (h host) bytes(ctx context.Context, in reference.Named, desc v1.Descriptor, most int64, m *meter) ([]byte, error) {
	if desc.Size < 0 || desc.Size > most {
		return nil, bad(fmt.Errorf("%s has %d bytes; the limit is %d", desc.MediaType, desc.Size, most))
	}
	has := run{of: m}
	has.set(0, desc.Size)
	var data bytes.Buffer // which grows with what comes, not with what was announced
	err := h.transfer(ctx, "", &has, func(_ context.Context, receive receiver) error {
		return receive(func(ctx context.Context, _ *atomic.Int64) error {
			body, err := h.Open(ctx, in, desc, int64(data.Len()))
			if err != nil {
				return remote{err}
			}
			defer body.Close()
			left := desc.Size - int64(data.Len())
			_, err = io.Copy(io.MultiWriter(&data, &has), io.LimitReader(counted{body, &h.images.came}, left+1))
			return err
		})
	})
	if err != nil {
		has.set(0, 0) // another host starts again
		return nil, err
	}
	if int64(data.Len()) != desc.Size || desc.Digest.Algorithm().FromBytes(data.Bytes()) != desc.Digest {
		return nil, garbled(fmt.Errorf("the download does not match %s (PKG-04)", desc.Digest))
	}
	return data.Bytes(), nil
}
