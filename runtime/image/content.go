package image

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/registry"
)

const (
	maxManifest = registry.MaxManifest
	maxConfig   = 8 << 20 // bytes of an image configuration
)

// read returns a whole part from the content store, verified.
func (i *Images) read(ctx context.Context, desc v1.Descriptor, limit int64) ([]byte, error) {
	r, err := i.o.Client.ContentStore().ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if r.Size() > limit {
		return nil, bad(fmt.Errorf("%s has more than %d bytes", desc.Digest, limit))
	}
	data, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
	if err != nil {
		return nil, err
	}
	if desc.Digest.Algorithm().FromBytes(data) != desc.Digest {
		return nil, garbled(fmt.Errorf("stored content does not match %s", desc.Digest))
	}
	return data, nil
}

// rootHere describes and returns a manifest or index in the content store, given only its digest.
func (i *Images) rootHere(ctx context.Context, d digest.Digest) (v1.Descriptor, []byte, error) {
	root := v1.Descriptor{Digest: d}
	data, err := i.read(ctx, root, maxManifest)
	if err != nil {
		return root, nil, err
	}
	root.Size = int64(len(data))
	if root.MediaType, err = registry.FormOf(data); err != nil {
		return root, data, bad(err)
	}
	return root, data, nil
}

// isHere tells whether a part is present, and leases it; it forgets one without a file.
func (p *pull) isHere(ctx context.Context, desc v1.Descriptor) (bool, error) {
	// Held first, or it could vanish after the look.
	if err := p.keep(ctx, leases.Resource{ID: desc.Digest.String(), Type: "content"}); err != nil {
		return false, err
	}
	r, err := p.o.Client.ContentStore().ReaderAt(ctx, desc)
	if err == nil {
		size := r.Size()
		if err = r.Close(); err == nil && (size == desc.Size || desc.Size == 0) {
			return true, nil
		}
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return false, err
	}
	return false, p.drop(ctx, desc.Digest)
}

// isGone tells whether a part is missing or unusable.
func isGone(err error) bool {
	code := codeOf(err)
	return errdefs.IsNotFound(err) || code == fault.Garbled || code == fault.InvalidPackage
}

// isDamaged reads a whole part and tells whether it no longer matches its digest.
func (i *Images) isDamaged(ctx context.Context, desc v1.Descriptor) (bool, error) {
	r, err := i.o.Client.ContentStore().ReaderAt(ctx, desc)
	if errdefs.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer r.Close()
	verifier := desc.Digest.Verifier()
	if _, err := io.Copy(verifier, io.NewSectionReader(r, 0, r.Size())); err != nil {
		return false, err
	}
	return !verifier.Verified(), nil
}

// drop removes a damaged part, if present, so that it can be fetched again. What it refers to stays.
func (p *pull) drop(ctx context.Context, d digest.Digest) error {
	store := p.o.Client.ContentStore()
	info, err := store.Info(ctx, d)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot drop damaged content %s: %w", d, err)
	}
	p.o.Logger.Warn("stored content is damaged; fetching it again", "image", p.name, "digest", d.String())
	for key, value := range info.Labels {
		held := leases.Resource{ID: value}
		if strings.HasPrefix(key, contentRef) {
			held.Type = "content"
		} else if name, ok := strings.CutPrefix(key, snapshotRef); ok {
			held.Type = "snapshots/" + name
		} else {
			continue
		}
		if err := p.keep(ctx, held); err != nil {
			return err
		}
	}
	if err := store.Delete(ctx, d); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot drop damaged content %s: %w", d, err)
	}
	return p.collect(ctx) // which removes the file, or it would be taken for the new one
}

// The prefixes of labels by which the garbage collector finds what a part refers to.
const (
	contentRef  = "containerd.io/gc.ref.content."
	snapshotRef = "containerd.io/gc.ref.snapshot."
)

func (i *Images) label(ctx context.Context, d digest.Digest, labels map[string]string) error {
	fields := make([]string, 0, len(labels))
	for key := range labels {
		fields = append(fields, "labels."+key)
	}
	if _, err := i.o.Client.ContentStore().Update(ctx, content.Info{Digest: d, Labels: labels}, fields...); err != nil {
		return fmt.Errorf("cannot label %s: %w", d, err)
	}
	return nil
}

// link labels manifests and index for the garbage collector, an index once for each platform.
func (i *Images) link(ctx context.Context, root v1.Descriptor, manifests ...v1.Descriptor) error {
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
		config, layers, err := partsOf(data)
		if err != nil { // it is no image
			continue
		}
		held := map[string]string{contentRef + "config": config.Digest.String()}
		for n, layer := range layers {
			held[fmt.Sprintf("%sl.%d", contentRef, n)] = layer.Digest.String()
		}
		if err := i.label(ctx, m.Digest, held); err != nil {
			return err
		}
		if m.Digest == root.Digest {
			continue
		}
		if err := i.label(ctx, root.Digest, map[string]string{contentRef + "m." + m.Digest.Encoded()[:12]: m.Digest.String()}); err != nil {
			return err
		}
	}
	return nil
}

// Size is the compressed bytes of a pulled image, for all its platforms, including shared ones.
func (i *Images) Size(ctx context.Context, name string) (size int64, err error) {
	// A label (see link) may be of a platform that is not here.
	measure := func(ctx context.Context, desc v1.Descriptor) (below []v1.Descriptor, err error) {
		part, err := i.o.Client.ContentStore().Info(ctx, desc.Digest)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
		size += part.Size
		for key, d := range part.Labels {
			if strings.HasPrefix(key, contentRef) {
				below = append(below, v1.Descriptor{Digest: digest.Digest(d)})
			}
		}
		return below, nil
	}
	record, err := i.o.Client.ImageService().Get(ctx, name)
	if err == nil {
		err = images.Walk(ctx, images.HandlerFunc(measure), record.Target)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot measure image %s: %w", name, err)
	}
	return size, nil
}

// projectLabel of a download's lease has its project, as ownLabel has the name of its image.
const projectLabel = "margolite/project"

// lease holds what was downloaded and unpacked.
func (p *pull) lease() leases.Lease {
	return leases.Lease{
		ID:     strings.Join([]string{"pull", "", p.want.For, p.name, p.want.Platform}, " "),
		Labels: map[string]string{ownLabel: p.name, projectLabel: p.want.For},
	}
}

// leased is ctx for downloads and unpacking held by the lease.
func (p *pull) leased(ctx context.Context) context.Context {
	return leases.WithLease(ctx, p.lease().ID)
}

// keep adds a present part or snapshot to the lease.
func (p *pull) keep(ctx context.Context, r leases.Resource) error {
	err := p.o.Client.LeasesService().AddResource(ctx, p.lease(), r)
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("cannot lease %s: %w", r.ID, err)
	}
	return nil
}

// release deletes a lease. What nothing else refers to is collected later.
func (i *Images) release(ctx context.Context, l leases.Lease) error {
	if err := i.o.Client.LeasesService().Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot end download of %s: %w", l.Labels[ownLabel], err)
	}
	return nil
}

// recall recreates the records of the images named in keep after containerd's database was lost and
// only content held by a lease is left. The rest goes with the lease, since its use is unknown. The
// next pull unpacks the images and needs no network.
func (i *Images) recall(ctx context.Context, keep map[string]bool) error {
	held, err := i.o.Client.LeasesService().List(ctx, "id=="+containerd.RecoveredLease)
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
	err = i.o.Client.LeasesService().Delete(ctx, leases.Lease{ID: containerd.RecoveredLease}, leases.SynchronousDelete)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot release unneeded content: %w", err)
	}
	return nil
}

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
	manifests := []v1.Descriptor{root}
	if images.IsIndexType(root.MediaType) {
		var index v1.Index
		_ = json.Unmarshal(data, &index) // an unreadable one has no platform here
		manifests = index.Manifests
	}
	if err := i.link(ctx, root, manifests...); err != nil {
		return err
	}
	_, err = i.o.Client.ImageService().Create(ctx, images.Image{Name: name, Target: root, Labels: map[string]string{ownLabel: "true"}})
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return nil
}
