package image

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/containerd/v2/pkg/rootfs"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

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

func (p *pull) apply(ctx context.Context, n int) error {
	layer := rootfs.Layer{
		Blob: p.layers[n],
		Diff: v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: p.diffs[n]},
	}
	snapshots := p.client.SnapshotService(p.snapshotter)
	applied, err := rootfs.ApplyLayerWithOpts(ctx, layer, p.diffs[:n:n], snapshots, p.client.DiffService(), nil, nil)
	if err == nil {
		if !applied {
			return nil
		}
		return p.label(ctx, layer.Blob.Digest, map[string]string{labels.LabelUncompressed: layer.Diff.Digest.String()})
	}
	err = fmt.Errorf("cannot unpack: %w", err)
	for _, sign := range []string{"wrong diff id", "gzip: invalid", "tar header"} {
		if strings.Contains(err.Error(), sign) { // neither containerd's errors nor their way through gRPC tell it otherwise
			return bad(err)
		}
	}
	return err
}

// linkSnapshot labels the configuration with the snapshot of the root file system, which holds those below it.
func (p *pull) linkSnapshot(ctx context.Context) error {
	if len(p.chains) == 0 {
		return nil
	}
	key := snapshotRef + p.snapshotter
	return p.label(ctx, p.config.Digest, map[string]string{key: p.chains[len(p.chains)-1].String()})
}
