package image

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/fault"
)

const (
	maxLayers = 500     // what overlayfs can stack
	maxLayer  = 1 << 40 // bytes
	maxOffers = 20      // platforms that an error names
)

// parts are the contents of an image for one platform.
type parts struct {
	root     v1.Descriptor // the index, or the manifest
	manifest v1.Descriptor
	config   v1.Descriptor
	layers   []v1.Descriptor
	diffs    []digest.Digest      // of the unpacked layers
	image    v1.Image             // what the configuration holds
	health   *compose.Healthcheck // and its HEALTHCHECK
}

// reader returns a part of an image of at most limit bytes.
type reader func(ctx context.Context, desc v1.Descriptor, limit int64) ([]byte, error)

// walk reads an image from its root down to its configuration.
func walk(ctx context.Context, root v1.Descriptor, wanted target, read reader) (parts, error) {
	p := parts{root: root, manifest: root}
	if images.IsIndexType(root.MediaType) {
		index, err := read(ctx, root, maxManifest)
		if err != nil {
			return p, err
		}
		if p.manifest, err = choose(index, wanted); err != nil {
			return p, err
		}
	}
	if !images.IsManifestType(p.manifest.MediaType) {
		return p, bad(fmt.Errorf("%.100q is not the media type of an image", p.manifest.MediaType))
	}
	data, err := read(ctx, p.manifest, maxManifest)
	if err != nil {
		return p, err
	}
	if p.config, p.layers, err = partsOf(data); err != nil {
		return p, err
	}
	if data, err = read(ctx, p.config, maxConfig); err != nil {
		return p, err
	}
	if p.image, p.health, err = configOf(data, wanted); err != nil {
		return p, err
	}
	if p.diffs = p.image.RootFS.DiffIDs; len(p.diffs) != len(p.layers) {
		return p, bad(fmt.Errorf("image has %d layers, but its configuration lists %d", len(p.layers), len(p.diffs)))
	}
	return p, nil
}

func choose(data []byte, wanted target) (v1.Descriptor, error) {
	var index v1.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return v1.Descriptor{}, bad(fmt.Errorf("cannot read index: %w", err))
	}
	var best *v1.Descriptor
	var offered []string
	for n := range index.Manifests {
		m := &index.Manifests[n]
		switch {
		case m.Platform == nil && len(index.Manifests) == 1:
			return *m, nil // its configuration tells
		case m.Platform == nil, m.Platform.OS == "unknown": // attestations are of no platform
			continue
		}
		offered = append(offered, platforms.Format(*m.Platform))
		if wanted.Match(*m.Platform) && (best == nil || wanted.Less(*m.Platform, *best.Platform)) {
			best = m
		}
	}
	if best == nil {
		return v1.Descriptor{}, wanted.unsupported(offered...)
	}
	return *best, nil
}

// unsupported lists the platforms of an image, of which a hostile index may name many.
func (t target) unsupported(offered ...string) error {
	slices.Sort(offered)
	offered = slices.Compact(offered)
	if len(offered) == 0 {
		offered = []string{"unnamed platforms"}
	}
	if more := len(offered) - maxOffers; more > 0 {
		offered = append(offered[:maxOffers:maxOffers], fmt.Sprintf("%d others", more))
	}
	err := fmt.Errorf("no platform for %s, only for %s", t.name, strings.Join(offered, ", "))
	return &fault.Error{Code: fault.Unsupported, Err: err}
}

func partsOf(data []byte) (config v1.Descriptor, layers []v1.Descriptor, err error) {
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return config, nil, bad(fmt.Errorf("cannot read manifest: %w", err))
	}
	if !images.IsConfigType(m.Config.MediaType) {
		return config, nil, bad(fmt.Errorf("not an image: its configuration is of type %.100q", m.Config.MediaType))
	}
	if len(m.Layers) > maxLayers {
		return config, nil, bad(fmt.Errorf("image has %d layers", len(m.Layers)))
	}
	for _, layer := range m.Layers {
		if !images.IsLayerType(layer.MediaType) {
			return config, nil, bad(fmt.Errorf("not an image: a layer is of type %.100q", layer.MediaType))
		}
		if layer.Size < 0 || layer.Size > maxLayer {
			return config, nil, bad(fmt.Errorf("a layer has an invalid size of %d bytes", layer.Size))
		}
	}
	return m.Config, m.Layers, nil
}

// configOf parses a configuration, with Docker's HEALTHCHECK, and refuses those for other machines.
func configOf(data []byte, wanted target) (v1.Image, *compose.Healthcheck, error) {
	var config struct {
		v1.Image
		Config struct {
			v1.ImageConfig
			Healthcheck *compose.Healthcheck
		} `json:"config"`
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return v1.Image{}, nil, bad(fmt.Errorf("cannot read image configuration: %w", err))
	}
	if !wanted.Match(config.Platform) {
		return v1.Image{}, nil, wanted.unsupported(platforms.Format(config.Platform))
	}
	for _, d := range config.RootFS.DiffIDs {
		if err := d.Validate(); err != nil {
			return v1.Image{}, nil, bad(fmt.Errorf("cannot read image configuration: %w", err))
		}
	}
	config.Image.Config = config.Config.ImageConfig
	return config.Image, config.Config.Healthcheck, nil
}
