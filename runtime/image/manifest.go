package image

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxLayers is what overlayfs can stack.
const maxLayers = 500

// formOf is the media type of a manifest or an index of which only the bytes are known.
func formOf(data []byte) (string, error) {
	var form struct {
		MediaType string          `json:"mediaType"`
		Manifests json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(data, &form); err != nil {
		return "", bad(fmt.Errorf("cannot read manifest: %w", err))
	}
	switch {
	case form.MediaType != "":
		return form.MediaType, nil
	case form.Manifests != nil:
		return v1.MediaTypeImageIndex, nil
	default:
		return v1.MediaTypeImageManifest, nil
	}
}

// choose returns the manifest that is best for a platform out of an index.
func choose(data []byte, platform platforms.MatchComparer) (v1.Descriptor, error) {
	var index v1.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return v1.Descriptor{}, bad(fmt.Errorf("cannot read index: %w", err))
	}
	var best *v1.Descriptor
	var offered []string
	for n := range index.Manifests {
		m := &index.Manifests[n]
		if m.Platform == nil {
			continue
		}
		offered = append(offered, platforms.Format(*m.Platform))
		if platform.Match(*m.Platform) && (best == nil || platform.Less(*m.Platform, *best.Platform)) {
			best = m
		}
	}
	if best == nil {
		return v1.Descriptor{}, &Error{
			Kind: NoPlatform,
			Err:  fmt.Errorf("nothing for this machine, only for %s", strings.Join(offered, ", ")),
		}
	}
	return *best, nil
}

// partsOf returns the configuration and the layers that an image's manifest names.
func partsOf(data []byte) (config v1.Descriptor, layers []v1.Descriptor, err error) {
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return config, nil, bad(fmt.Errorf("cannot read manifest: %w", err))
	}
	if !images.IsConfigType(m.Config.MediaType) {
		return config, nil, bad(fmt.Errorf("no image: its configuration is of type %q", m.Config.MediaType))
	}
	if len(m.Layers) > maxLayers {
		return config, nil, bad(fmt.Errorf("image has %d layers", len(m.Layers)))
	}
	for _, layer := range m.Layers {
		if !images.IsLayerType(layer.MediaType) {
			return config, nil, bad(fmt.Errorf("no image: a layer is of type %q", layer.MediaType))
		}
	}
	return m.Config, m.Layers, nil
}

// checkPlatform refuses a configuration that is for another machine.
func checkPlatform(data []byte, platform platforms.MatchComparer) error {
	var config v1.Image
	if err := json.Unmarshal(data, &config); err != nil {
		return bad(fmt.Errorf("cannot read image configuration: %w", err))
	}
	if !platform.Match(config.Platform) {
		return &Error{Kind: NoPlatform, Err: fmt.Errorf("image is for %s", platforms.Format(config.Platform))}
	}
	return nil
}
