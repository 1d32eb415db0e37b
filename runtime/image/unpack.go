package image

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/runtime/tree"
)

// cleanTimeout is how long it may take to empty a snapshot that was unpacked in part, and again to remove it, also when
// the pull was given up.
const cleanTimeout = 10 * time.Second

// uncompressedLabel is the label of a layer with the digest of what it unpacks to, by which containerd knows that too.
const uncompressedLabel = "containerd.io/uncompressed"

// unpack makes the snapshot of layer n, unless it is there, those below it being there already. Images that share it wait
// for each other.
func (p *pull) unpack(ctx context.Context, n int) error {
	turn, err := p.processors.Acquire(ctx, limit.Key{Kind: p.snapshotter + " " + p.chains[n].String()}, nil, nil)
	if err != nil {
		return err
	}
	defer turn.Release()
	snapshotter := p.o.Client.SnapshotService(p.snapshotter)
	_, err = snapshotter.Stat(ctx, p.chains[n].String())
	if err == nil { // of another image, which may go
		return p.keep(ctx, leases.Resource{ID: p.chains[n].String(), Type: "snapshots/" + p.snapshotter})
	}
	if errdefs.IsNotFound(err) {
		err = p.extract(ctx, snapshotter, n)
	}
	switch {
	case errdefs.IsAlreadyExists(err): // somebody else was faster
		return nil
	case err == nil:
		return p.label(ctx, p.layers[n].Digest, map[string]string{uncompressedLabel: p.diffs[n].String()})
	}
	err = fmt.Errorf("cannot unpack: %w", err)
	for _, sign := range []string{"gzip: invalid", "tar header"} {
		if strings.Contains(err.Error(), sign) { // neither containerd's errors nor their way through gRPC tell it otherwise
			return bad(err)
		}
	}
	return err
}

// extract unpacks layer n on the snapshot of those below it. It is one of its own until it is complete and on the medium:
// so a snapshot of a layer can be trusted after a power cut, and what is left of another one goes with the lease. Its name
// is as containerd gives them.
func (p *pull) extract(ctx context.Context, snapshotter snapshots.Snapshotter, n int) (err error) {
	p.before()
	if err := ctx.Err(); err != nil { // who was told may not want it
		return err
	}
	var parent string
	if n > 0 {
		parent = p.chains[n-1].String()
	}
	key := "extract-" + rand.Text() + " " + p.chains[n].String()
	mounts, err := snapshotter.Prepare(ctx, key, parent)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		p.partial = append(p.partial, func() {
			if err := discard(context.WithoutCancel(ctx), snapshotter, key, mounts); err != nil {
				p.o.Logger.Warn("cannot remove a partly unpacked layer", "image", p.name, "snapshot", key, "error", err)
			}
		})
	}()
	if at := slices.IndexFunc(p.media, func(m medium) bool { return m.snapshots }); at >= 0 {
		allowed := p.allow(p.media[at], unpackedSize(ctx, p.layers[n]), p)
		defer allowed.end()
		ctx = containerd.WithSpace(ctx, allowed)
	}
	unpacked, err := p.o.Client.DiffService().Apply(ctx, p.layers[n], mounts)
	if err != nil {
		return err
	}
	if unpacked.Digest != p.diffs[n] {
		return bad(fmt.Errorf("layer %s unpacks to %s, but the image says %s", p.layers[n].Digest, unpacked.Digest, p.diffs[n]))
	}
	if err := syncAll(p.media); err != nil {
		return err
	}
	mounts = nil // they may be those of the layer from now on, also where containerd's answer is lost
	return snapshotter.Commit(ctx, p.chains[n].String(), key)
}

// discard removes a snapshot that is not complete, and what was written to it.
func discard(ctx context.Context, snapshotter snapshots.Snapshotter, key string, mounts []mount.Mount) error {
	// The files first: where they have filled the device, containerd cannot even write down that they are to go. What is on
	// a file system of its own takes no space of others.
	emptying, done := context.WithTimeout(ctx, cleanTimeout)
	defer done()
	var errs []error
	for _, dir := range containerd.WrittenDirs(mounts) {
		errs = append(errs, tree.Empty(emptying, dir))
	}
	removing, done := context.WithTimeout(ctx, cleanTimeout)
	defer done()
	return errors.Join(append(errs, snapshotter.Remove(removing, key))...)
}
