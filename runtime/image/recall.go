package image

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/containerd"
)

// recall makes images known again after the database of containerd was lost, of which there is nothing left but content
// that a lease holds. keep are the names of those that are wanted; of what is left nobody knows whose it was, and it goes
// with the lease. Images are unpacked when they are pulled again, which needs no network then.
func (i *Images) recall(ctx context.Context, keep map[string]bool) error {
	held, err := i.client.LeasesService().List(ctx, "id=="+containerd.RecoveredLease)
	if err != nil {
		return fmt.Errorf("cannot check whether images must be restored: %w", err)
	}
	if len(held) == 0 {
		return nil
	}
	for name := range keep {
		if err := i.recallOne(ctx, name); err != nil {
			return fmt.Errorf("cannot restore image %s: %w", name, err)
		}
	}
	err = i.client.LeasesService().Delete(ctx, leases.Lease{ID: containerd.RecoveredLease}, leases.SynchronousDelete)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot release unneeded content: %w", err)
	}
	return nil
}

// recallOne records an image of which the root is here.
func (i *Images) recallOne(ctx context.Context, name string) error {
	_, text, _ := strings.Cut(name, "@")
	d := digest.Digest(text)
	if d.Validate() != nil {
		return nil
	}
	root, data, err := i.rootHere(ctx, d)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := i.linkAll(ctx, root, data); err != nil {
		return err
	}
	_, err = i.client.ImageService().Create(ctx, images.Image{Name: name, Target: root, Labels: map[string]string{ownLabel: "true"}})
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// linkAll links what is here of an image, for all platforms.
func (i *Images) linkAll(ctx context.Context, root v1.Descriptor, data []byte) error {
	manifests := []v1.Descriptor{root}
	if images.IsIndexType(root.MediaType) {
		var index v1.Index
		if err := json.Unmarshal(data, &index); err != nil {
			return nil // no platform is here
		}
		manifests = index.Manifests
	}
	for _, m := range manifests {
		if m.Digest.Validate() != nil {
			continue
		}
		data, err := i.read(ctx, m, maxManifest)
		if isGone(err) {
			continue
		}
		if err != nil {
			return err
		}
		p := parts{root: root, manifest: m}
		if p.config, p.layers, err = partsOf(data); err != nil {
			continue // it is no image
		}
		if err := i.link(ctx, p); err != nil {
			return err
		}
	}
	return nil
}
