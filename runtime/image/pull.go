package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

const (
	downloads   = 2       // at a time
	maxManifest = 4 << 20 // bytes of a manifest or an index, as registries limit them
	maxConfig   = 8 << 20 // bytes of an image configuration
)

// Resolve asks which digest a reference stands for now. One that holds a digest is answered without asking.
func (i *Images) Resolve(ctx context.Context, ref string) (digest.Digest, error) {
	named, err := parse(ref)
	if err != nil {
		return "", fail(ref, bad(err))
	}
	d, err := i.resolve(ctx, named)
	return d, fail(ref, err)
}

func (i *Images) resolve(ctx context.Context, ref reference.Named) (digest.Digest, error) {
	if canonical, ok := ref.(reference.Canonical); ok {
		return canonical.Digest(), nil
	}
	s, err := i.open(reference.Domain(ref))
	if err != nil {
		return "", err
	}
	defer s.close()
	root, err := i.ask(ctx, s, ref.String())
	return root.Digest, err
}

// ask gets the descriptor of a reference from the first host that has it.
func (i *Images) ask(ctx context.Context, s *session, ref string) (root v1.Descriptor, err error) {
	err = s.try(ctx, i.log, func(h host) error {
		if _, root, err = h.resolver.Resolve(ctx, ref); err != nil {
			return remote{err}
		}
		return root.Digest.Validate()
	})
	return root, err
}

// Pull makes an image complete and unpacked on the device. With a pin nobody is asked what the tag stands for; an image
// that is there already needs no network. progress may be nil.
func (i *Images) Pull(ctx context.Context, ref string, pin digest.Digest, progress func(Progress)) (*Image, error) {
	named, err := parse(ref)
	if err != nil {
		return nil, fail(ref, bad(err))
	}
	if pin == "" {
		if pin, err = i.resolve(ctx, named); err != nil {
			return nil, fail(ref, err)
		}
	}
	name := pinned(named, pin)
	image, err := i.get(ctx, name)
	if err == nil {
		return image, nil
	}
	if err := i.begin(ctx, name); err != nil {
		return nil, fail(ref, err)
	}
	defer i.end()
	image, err = i.pull(ctx, name, pin, reference.Domain(named), newMeter(ref, progress))
	return image, fail(ref, err)
}

// begin waits until no other image is being pulled.
func (i *Images) begin(ctx context.Context, name string) error {
	select {
	case i.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.name = name
	return nil
}

func (i *Images) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.name = ""
	<-i.turn
}

// pulling is the name of the image that is being pulled, or empty.
func (i *Images) pulling() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.name
}

func (i *Images) pull(ctx context.Context, name string, d digest.Digest, registry string, m *meter) (*Image, error) {
	// The lease outlives a failure, so that the next attempt goes on from here.
	lease := leases.Lease{ID: "pull/" + name}
	_, err := i.client.LeasesService().Create(ctx, leases.WithID(lease.ID), leases.WithLabel(ownLabel, name))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return nil, fmt.Errorf("cannot hold download: %w", err)
	}
	leased := leases.WithLease(ctx, lease.ID)

	s, err := i.open(registry)
	if err != nil {
		return nil, err
	}
	defer s.close()
	p := &puller{Images: i, session: s, meter: m, name: name}
	root, err := p.root(leased, d)
	if err != nil {
		return nil, err
	}
	if err := p.fetch(leased, root); err != nil {
		return nil, err
	}
	record := images.Image{Name: name, Target: root, Labels: map[string]string{ownLabel: "true"}}
	if err := i.unpack(leased, record); err != nil {
		return nil, err
	}
	if _, err := i.client.ImageService().Create(leased, record); err != nil && !errdefs.IsAlreadyExists(err) {
		return nil, fmt.Errorf("cannot record image: %w", err)
	}
	if err := i.client.LeasesService().Delete(ctx, lease); err != nil && !errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("cannot end download: %w", err)
	}
	return i.describe(ctx, record)
}

// puller downloads the parts of one image.
type puller struct {
	*Images
	session *session
	meter   *meter
	name    string // repository@digest
}

// root describes the manifest or index with the digest. What is in the content store already needs no registry.
func (p *puller) root(ctx context.Context, d digest.Digest) (v1.Descriptor, error) {
	info, err := p.client.ContentStore().Info(ctx, d)
	if errdefs.IsNotFound(err) {
		return p.ask(ctx, p.session, p.name)
	}
	if err != nil {
		return v1.Descriptor{}, err
	}
	desc := v1.Descriptor{Digest: d, Size: info.Size}
	m, err := p.read(ctx, desc, maxManifest)
	if err != nil {
		return v1.Descriptor{}, err
	}
	desc.MediaType, err = formOf(m)
	return desc, err
}

// fetch downloads what this machine needs of the image, and labels each part with those it holds: what the garbage
// collector goes by.
func (p *puller) fetch(ctx context.Context, root v1.Descriptor) error {
	manifest := root
	if images.IsIndexType(root.MediaType) {
		index, err := p.document(ctx, root, maxManifest)
		if err != nil {
			return err
		}
		chosen, err := choose(index, p.platform)
		if err != nil {
			return err
		}
		if err := p.hold(ctx, root, map[string]v1.Descriptor{"m.0": chosen}); err != nil {
			return err
		}
		manifest = chosen
	}
	if !images.IsManifestType(manifest.MediaType) {
		return bad(fmt.Errorf("%q is not the media type of an image", manifest.MediaType))
	}
	data, err := p.document(ctx, manifest, maxManifest)
	if err != nil {
		return err
	}
	config, layers, err := partsOf(data)
	if err != nil {
		return err
	}
	held := map[string]v1.Descriptor{"config": config}
	for n, layer := range layers {
		held[fmt.Sprintf("l.%d", n)] = layer
	}
	if err := p.hold(ctx, manifest, held); err != nil {
		return err
	}

	if data, err = p.document(ctx, config, maxConfig); err != nil {
		return err
	}
	if err := checkPlatform(data, p.platform); err != nil {
		return err
	}
	for _, layer := range layers {
		p.meter.expect(layer.Size)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(downloads)
	for _, layer := range layers {
		group.Go(func() error { return p.part(ctx, layer) })
	}
	return group.Wait()
}

// document downloads a part that is read as a whole, and returns it.
func (p *puller) document(ctx context.Context, desc v1.Descriptor, limit int64) ([]byte, error) {
	if desc.Size > limit {
		return nil, bad(fmt.Errorf("%s is bigger than %d bytes", desc.MediaType, limit))
	}
	p.meter.expect(desc.Size)
	if err := p.part(ctx, desc); err != nil {
		return nil, err
	}
	return p.read(ctx, desc, limit)
}

func (p *puller) read(ctx context.Context, desc v1.Descriptor, limit int64) ([]byte, error) {
	r, err := p.client.ContentStore().ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if r.Size() > limit {
		return nil, bad(fmt.Errorf("%s is bigger than %d bytes", desc.Digest, limit))
	}
	return io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
}

// part downloads a blob or manifest into the content store, from where the last attempt has left off.
func (p *puller) part(ctx context.Context, desc v1.Descriptor) error {
	if err := desc.Digest.Validate(); err != nil {
		return bad(err)
	}
	desc.URLs = nil // only the registry and its mirrors are asked
	return p.session.try(ctx, p.log, func(h host) error {
		fetcher, err := h.resolver.Fetcher(ctx, p.name)
		if err != nil {
			return err
		}
		store := p.client.ContentStore()
		download := func() error {
			err := remotes.Fetch(ctx, counted{store, p.meter, desc.Size}, marked{fetcher}, desc)
			if errdefs.IsAlreadyExists(err) {
				return nil
			}
			return err
		}
		err = download()
		switch {
		case isRangeRefused(err):
			// There are registries that cannot continue what they have begun.
			if err := p.abort(ctx, desc); err != nil {
				return err
			}
			return download()
		case err != nil && kindOf(err) == BadContent:
			// What has come is of no use, and would be found again.
			return errors.Join(err, p.abort(ctx, desc))
		}
		return err
	})
}

// abort throws away what has come of a part.
func (p *puller) abort(ctx context.Context, desc v1.Descriptor) error {
	ref := remotes.MakeRefKey(ctx, desc)
	store := p.client.ContentStore()
	if status, err := store.Status(ctx, ref); err == nil {
		p.meter.done(-status.Offset)
	}
	if err := store.Abort(ctx, ref); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot start download again: %w", err)
	}
	return nil
}

// hold labels a part with those it refers to.
func (p *puller) hold(ctx context.Context, holder v1.Descriptor, held map[string]v1.Descriptor) error {
	info := content.Info{Digest: holder.Digest, Labels: map[string]string{}}
	var fields []string
	for key, desc := range held {
		label := "containerd.io/gc.ref.content." + key
		info.Labels[label] = desc.Digest.String()
		fields = append(fields, "labels."+label)
	}
	if _, err := p.client.ContentStore().Update(ctx, info, fields...); err != nil {
		return fmt.Errorf("cannot label %s: %w", holder.Digest, err)
	}
	return nil
}

// unpack applies the layers one after the other. The snapshots are held by the configuration's label.
func (i *Images) unpack(ctx context.Context, record images.Image) error {
	snapshotter, err := i.Snapshotter(ctx)
	if err != nil {
		return err
	}
	err = containerd.NewImageWithPlatform(i.client, record, i.platform).Unpack(ctx, snapshotter)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("cannot unpack: %w", err)
	for _, sign := range []string{"mismatched image rootfs", "wrong diff id", "gzip: invalid", "tar header"} {
		if strings.Contains(err.Error(), sign) { // neither containerd's errors nor their way through gRPC tell it otherwise
			return bad(err)
		}
	}
	return err
}

// marked is a fetcher whose errors are marked as remote.
type marked struct{ remotes.Fetcher }

func (m marked) Fetch(ctx context.Context, desc v1.Descriptor) (io.ReadCloser, error) {
	r, err := m.Fetcher.Fetch(ctx, desc)
	if err != nil {
		return nil, remote{err}
	}
	return markedReader{r.(io.ReadSeekCloser)}, nil
}

type markedReader struct{ io.ReadSeekCloser }

func (m markedReader) Read(p []byte) (int, error) {
	n, err := m.ReadSeekCloser.Read(p)
	if err != nil && err != io.EOF {
		err = remote{err}
	}
	return n, err
}
