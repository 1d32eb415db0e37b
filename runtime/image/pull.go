package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/runtime/fault"
)

func (i *Images) resolve(ctx context.Context, ref reference.Named) (digest.Digest, error) {
	s, err := i.open(ref)
	if err != nil {
		return "", err
	}
	root, err := i.ask(ctx, s, ref)
	return root.Digest, err
}

func (i *Images) ask(ctx context.Context, s session, ref reference.Named) (root v1.Descriptor, err error) {
	err = s.try(ctx, i.o.Logger, func(h host) error {
		if root, err = h.Resolve(ctx, ref); err != nil {
			return remote{err}
		}
		return nil
	})
	return root, err
}

// Pull makes images complete, unpacked and durable, and returns them in the order of wants. With a pin
// no tag is looked up; a present image needs no network. Nothing is downloaded unless all images fit.
// progress is called with each image as an object, one call at a time; it may be nil. Pull is safe for
// concurrent use; calls for the same image and project wait for each other.
func (i *Images) Pull(ctx context.Context, wants []Want, progress func(Progress)) ([]*Image, error) {
	pulls := make([]*pull, len(wants))
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(i.o.AtOnce)
	for n, w := range wants {
		contained(group, func() (err error) {
			pulls[n], err = i.look(within, w, i.resolve)
			return fail(w.Ref, err)
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}

	var missing []*pull
	for _, p := range pulls {
		if p.image == nil && !slices.ContainsFunc(missing, p.isSame) {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		if err := i.bring(ctx, missing, progress); err != nil {
			return nil, err
		}
	}

	pulled := make([]*Image, len(pulls))
	for n, p := range pulls {
		if p.image == nil { // another reference has brought it
			p.image = missing[slices.IndexFunc(missing, p.isSame)].image
		}
		pulled[n] = p.image
		if signer := p.want.Looked.Signer; signer != "" {
			if err := i.mark(ctx, p.name, signersLabel, signer, true); err != nil {
				return nil, fail(p.want.Ref, err)
			}
		}
		if p.found.tag != "" {
			if err := i.tag(ctx, p.found); err != nil {
				return nil, fail(p.want.Ref, err)
			}
		}
	}
	return pulled, nil
}

type pull struct {
	*Images
	want        Want
	found       found
	name        string // repository@digest
	platform    target
	snapshotter string
	image       *Image // nil until present

	session session
	meter   *meter
	waiting run      // of the image as a whole
	media   []medium // that it comes to, as they were before
	parts
	here    []chan struct{} // closed when the layer is
	chains  []digest.Digest // of the snapshots, by layer
	before  func()          // is called before a layer is unpacked
	partial []func()        // remove what was unpacked and is not complete; last, so that one can tell whether it has filled the device
}

// isSame tells whether two pulls share a lease: they are of one image, for one project.
func (p *pull) isSame(o *pull) bool { return o.lease().ID == p.lease().ID }

// look finds the wanted digest, and the image if present.
func (i *Images) look(ctx context.Context, w Want, ask asker) (*pull, error) {
	platform, err := targetOf(w.Platform)
	if err != nil {
		return nil, err
	}
	p := &pull{Images: i, want: w, platform: platform}
	if p.found, err = i.find(ctx, w, ask); err != nil {
		return nil, err
	}
	p.name = p.found.String()
	if p.snapshotter, err = i.Snapshotter(ctx); err != nil {
		return nil, err
	}
	return p, p.lookHere(ctx)
}

func (p *pull) lookHere(ctx context.Context) (err error) {
	p.image, err = p.get(ctx, p.name, p.platform)
	if codeOf(err) == fault.NotFound {
		return nil
	}
	return err
}

func (i *Images) bring(ctx context.Context, pulls []*pull, progress func(Progress)) (err error) {
	var reporting sync.Mutex
	for _, p := range pulls {
		p.meter = newMeter(p.want.Ref, progress, &reporting)
		p.meter.changed = i.wake
		p.waiting.of = p.meter
	}
	end, err := i.begin(ctx, pulls)
	if err != nil {
		return fail(pulls[0].want.Ref, err)
	}
	defer end()
	for _, p := range pulls {
		if err := p.lookHere(ctx); err != nil {
			return fail(p.want.Ref, err)
		}
	}
	// Another pull may have brought some meanwhile.
	if pulls = slices.DeleteFunc(slices.Clone(pulls), func(p *pull) bool { return p.image != nil }); len(pulls) == 0 {
		return nil
	}
	if err := i.refused(pulls); err != nil {
		return err
	}
	defer func() {
		var begun []leases.Lease
		for _, p := range pulls {
			for _, remove := range p.partial {
				remove()
			}
			begun = append(begun, p.lease())
		}
		i.remember(pulls, err)
		if fault.IsFull(err) { // frees the space of partial downloads
			_, failed := i.remove(context.WithoutCancel(ctx), nil, begun)
			err = errors.Join(err, failed)
		}
	}()

	if err := i.checkReserve(ctx, pulls); err != nil {
		return err
	}
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(i.o.AtOnce)
	for _, p := range pulls {
		contained(group, func() error { return fail(p.want.Ref, p.prepare(within)) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	found, err := i.makeRoom(ctx, pulls)
	if err != nil {
		return fail("images", err)
	}
	for _, p := range pulls {
		p.media = found.media
		p.before = sync.OnceFunc(func() { p.meter.unpacks(found.layers) })
	}
	err = i.transfer(ctx, pulls, found.media)
	if _, full := check(found.media, pulls); full != nil && fault.IsFull(err) && !errors.As(err, new(*NoSpaceError)) {
		err = fmt.Errorf("%w: %w", full, err) // the device was full before anybody had looked
	}
	if err != nil {
		return err
	}
	// Before the records: an image with a record is complete even after a power cut.
	if err := syncAll(found.media); err != nil {
		return fail("images", err)
	}
	for _, p := range pulls {
		if err := p.record(ctx); err != nil {
			return fail(p.want.Ref, err)
		}
	}
	return nil
}

// begin waits until no other pull is for one of the images and the same project.
func (i *Images) begin(ctx context.Context, pulls []*pull) (end func(), err error) {
	err = i.await(ctx, pulls, sameContent, func() (bool, error) {
		i.mu.Lock()
		defer i.mu.Unlock()
		for other := range i.pulls {
			if slices.ContainsFunc(pulls, other.isSame) {
				return false, nil
			}
		}
		for _, p := range pulls {
			i.pulls[p] = false
		}
		return true, nil
	})
	for _, p := range pulls {
		p.waiting.end()
	}
	return func() {
		i.mu.Lock()
		for _, p := range pulls {
			delete(i.pulls, p)
		}
		i.mu.Unlock()
		i.wake()
	}, err
}

// await retries each time a pull has ended or become slow, until done.
func (i *Images) await(ctx context.Context, pulls []*pull, why string, try func() (done bool, err error)) error {
	for {
		i.mu.Lock()
		changed := i.changed
		i.mu.Unlock()
		if done, err := try(); done || err != nil {
			return err
		}
		for _, p := range pulls {
			p.waiting.note(why, true)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (i *Images) wake() {
	i.mu.Lock()
	defer i.mu.Unlock()
	close(i.changed)
	i.changed = make(chan struct{})
}

func (i *Images) isPulling(name string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for p := range i.pulls {
		if p.name == name {
			return true
		}
	}
	return false
}

// prepare downloads the manifests and configuration of an image.
func (p *pull) prepare(ctx context.Context) (err error) {
	// The lease of a failed attempt remains, so that this one can continue.
	l := p.lease()
	_, err = p.o.Client.LeasesService().Create(ctx, leases.WithID(l.ID), leases.WithLabels(l.Labels))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("cannot lease download: %w", err)
	}
	ctx = p.leased(ctx)
	if p.session, err = p.openFor(p.want); err != nil {
		return err
	}
	root, data, err := p.rootHere(ctx, p.found.Digest())
	if data == nil && isGone(err) { // content in the store needs no registry
		root, err = p.ask(ctx, p.session, p.found)
	}
	if err != nil {
		return err
	}
	if p.parts, err = walk(ctx, root, p.platform, p.document); err != nil {
		return err
	}
	p.chains = identity.ChainIDs(slices.Clone(p.diffs))
	return p.link(ctx, p.parts.root, p.manifest)
}

// document downloads and returns a part that is read as a whole.
func (p *pull) document(ctx context.Context, desc v1.Descriptor, limit int64) (data []byte, err error) {
	if desc.Size > limit {
		return nil, bad(fmt.Errorf("%s has more than %d bytes", desc.MediaType, limit))
	}
	p.meter.add(0, desc.Size)
	if err := p.part(ctx, desc); err != nil {
		return nil, err
	}
	err = p.with(ctx, desc, func() (err error) {
		data, err = p.read(ctx, desc, limit)
		return err
	})
	return data, err
}

// with uses a present part. An old one may be damaged: then it is downloaded and used again.
func (p *pull) with(ctx context.Context, desc v1.Descriptor, use func() error) error {
	err := use()
	if err == nil || ctx.Err() != nil || fault.IsFull(err) {
		return err
	}
	if damaged, lookErr := p.isDamaged(ctx, desc); lookErr != nil || !damaged {
		return err
	}
	if err := p.drop(ctx, desc.Digest); err != nil {
		return err
	}
	p.meter.add(-desc.Size, 0)
	if err := p.part(ctx, desc); err != nil {
		return err
	}
	return use()
}

// transfer downloads the layers of all images in parallel, within the slots, and unpacks each as soon as
// it and those below it are present. Shared layers come once: see newSlots. No part is ever in memory
// as a whole: containerd copies downloads in pieces, and unpacks from the file.
func (i *Images) transfer(ctx context.Context, pulls []*pull, media []medium) error {
	guarded, done := context.WithCancel(ctx)
	defer done()
	all, within := errgroup.WithContext(guarded)
	contained(all, func() error { return guardReserve(within, media, pulls) })
	group, ctx := errgroup.WithContext(within)
	for _, p := range pulls {
		for _, desc := range p.layers {
			p.meter.add(0, desc.Size)
			p.here = append(p.here, make(chan struct{}))
		}
		contained(group, func() error { return p.unpackAll(ctx) })
	}
	contained(group, func() error {
		downloads, ctx := errgroup.WithContext(ctx)
		downloads.SetLimit(i.o.AtOnce) // of which those run that have a slot
		for _, p := range pulls {
			for n, desc := range p.layers {
				contained(downloads, func() error {
					err := p.part(p.leased(ctx), desc)
					if err == nil {
						close(p.here[n])
					}
					return fail(p.want.Ref, err)
				})
			}
		}
		return downloads.Wait()
	})
	all.Go(func() error {
		defer done() // of the guard, too
		return group.Wait()
	})
	return all.Wait()
}

func (p *pull) unpackAll(ctx context.Context) error {
	for n := range p.layers {
		select {
		case <-p.here[n]:
			leased := p.leased(ctx)
			if err := p.with(leased, p.layers[n], func() error { return p.unpack(leased, n) }); err != nil {
				return fail(p.want.Ref, err)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// contained has a panic in a group become the group's error.
func contained(g *errgroup.Group, do func() error) {
	g.Go(func() error { return contain.Call(do) })
}

// record creates the image record, and releases the download.
func (p *pull) record(ctx context.Context) error {
	leased := p.leased(ctx)
	if len(p.chains) > 0 { // the snapshot of the root file system, which holds those below it
		root := map[string]string{snapshotRef + p.snapshotter: p.chains[len(p.chains)-1].String()}
		if err := p.label(leased, p.config.Digest, root); err != nil {
			return err
		}
	}
	record := images.Image{Name: p.name, Target: p.parts.root, Labels: map[string]string{ownLabel: "true"}}
	if p.want.Looked.Signer != "" {
		record.Labels[signersLabel] = p.want.Looked.Signer
	}
	_, err := p.o.Client.ImageService().Create(leased, record)
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("cannot record image: %w", err)
	}
	if err := p.release(ctx, p.lease()); err != nil {
		return err
	}
	p.image, err = p.get(ctx, p.name, p.platform)
	return err
}
