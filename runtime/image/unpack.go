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

// cleanTimeout bounds emptying a partial snapshot, and again removing it, even of an ended pull.
const cleanTimeout = 10 * time.Second

// uncompressedLabel of a layer has its unpacked digest, as containerd knows it.
const uncompressedLabel = "containerd.io/uncompressed"

// unpack makes the missing snapshot of layer n on those below. Images that share it take turns.
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
	case errdefs.IsAlreadyExists(err): // another pull was faster
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

// extract unpacks layer n on those below it. The snapshot gets its name, containerd's, when it is
// complete and durable: named ones can be trusted after a power cut, others go with the lease.
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

func discard(ctx context.Context, snapshotter snapshots.Snapshotter, key string, mounts []mount.Mount) error {
	// Files first: on a full device containerd could not even record the removal.
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
