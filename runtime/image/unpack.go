package image

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/margolite/margolite/runtime/containerd"
)

// cleanTimeout is how long containerd may take to remove what was unpacked in part, also when the pull was given up.
const cleanTimeout = 10 * time.Second

// unpack applies layer n, those below it being there already. Images that share it wait for each other with turn.
func (p *pull) unpack(ctx context.Context, n int, turn *sync.Mutex, processors chan struct{}) error {
	turn.Lock()
	defer turn.Unlock()
	select {
	case processors <- struct{}{}:
		defer func() { <-processors }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx = p.leased(ctx)
	err := p.apply(ctx, n)
	if err == nil || ctx.Err() != nil || IsFull(err) {
		return err
	}
	// A layer that came long ago may have been damaged since.
	damaged, lookErr := p.isDamaged(ctx, p.layers[n])
	if lookErr != nil || !damaged {
		return err
	}
	if err := p.drop(ctx, p.layers[n].Digest); err != nil {
		return err
	}
	p.meter.done(-p.layers[n].Size)
	if err := p.part(ctx, p.layers[n]); err != nil {
		return err
	}
	return p.apply(ctx, n)
}

// uncompressedLabel is the label of a layer with the digest of what it unpacks to, by which containerd knows that too.
const uncompressedLabel = "containerd.io/uncompressed"

// apply makes the snapshot of layer n, unless it is there.
func (p *pull) apply(ctx context.Context, n int) error {
	snapshots := p.client.SnapshotService(p.snapshotter)
	_, err := snapshots.Stat(ctx, p.chain(n).String())
	if err == nil {
		return nil
	}
	if errdefs.IsNotFound(err) {
		err = p.extract(ctx, snapshots, n)
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

// extract unpacks layer n on the snapshot of those below it. It is one of its own until it is complete; what is left of
// it by a power cut goes with the lease. Its name is as containerd gives them.
func (p *pull) extract(ctx context.Context, snapshots containerd.Snapshotter, n int) (err error) {
	var parent string
	if n > 0 {
		parent = p.chain(n - 1).String()
	}
	key := "extract-" + rand.Text() + " " + p.chain(n).String()
	mounts, err := snapshots.Prepare(ctx, key, parent, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		p.partial = append(p.partial, func() {
			ctx, done := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
			defer done()
			// The files first: where they have filled the device, containerd cannot even write down that they are to go.
			if err := errors.Join(empty(mounts), snapshots.Remove(ctx, key)); err != nil {
				p.log.Warn("cannot remove what was unpacked in part", "image", p.name, "snapshot", key, "error", err)
			}
		})
	}()
	unpacked, err := p.client.DiffService().Apply(ctx, p.layers[n], mounts)
	if err != nil {
		return err
	}
	if unpacked.Digest != p.diffs[n] {
		return bad(fmt.Errorf("layer %s unpacks to %s, and the image says %s", p.layers[n].Digest, unpacked.Digest, p.diffs[n]))
	}
	mounts = nil // they may be those of the layer from now on, also where containerd's answer is lost
	return snapshots.Commit(ctx, p.chain(n).String(), key, nil)
}

// empty removes what was written to the mounts of a snapshot that is not complete. What is on a file system of its own
// takes no space of others.
func empty(mounts []containerd.Mount) error {
	var errs []error
	for _, m := range mounts {
		var dir string
		switch m.Type {
		case "bind":
			dir = m.Source
		case "overlay":
			for _, o := range m.Options {
				if upper, ok := strings.CutPrefix(o, "upperdir="); ok {
					dir = upper
				}
			}
		}
		if dir == "" {
			continue
		}
		files, err := os.ReadDir(dir)
		errs = append(errs, err)
		for _, f := range files {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, f.Name())))
		}
	}
	return errors.Join(errs...)
}

// linkSnapshot labels the configuration with the snapshot of the root file system, which holds those below it.
func (p *pull) linkSnapshot(ctx context.Context) error {
	if len(p.chains) == 0 {
		return nil
	}
	key := snapshotRef + p.snapshotter
	return p.label(ctx, p.config.Digest, map[string]string{key: p.chains[len(p.chains)-1].String()})
}
