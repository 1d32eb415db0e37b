package image

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

const (
	// expansion is what unpacking makes of a compressed layer: about twice for
	// programs, more for text. Where it is more, the disk says so.
	expansion = 2
	// reserve is what downloads leave free for databases and logs, and no more
	// than a part of a small file system.
	reserve     = 64 << 20
	reservePart = 20 // one of 20
)

// NoSpaceError says that images do not fit. The error of a disk that was full before anybody knew is another one of
// kind NoSpace.
type NoSpaceError struct {
	Dir    string // of containerd, on the file system that is too small
	Needed int64  // bytes that are missing, downloaded and unpacked; how big they become is an estimate
	Free   int64  // bytes that images may take
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("it needs about %d MiB in %s, where %d MiB are free for images", e.Needed>>20, e.Dir, e.Free>>20)
}

// makeRoom fails when what is missing of the images does not fit.
func (i *Images) makeRoom(ctx context.Context, pulls []*pull) error {
	media, err := i.media(ctx)
	if err != nil {
		return err
	}
	if len(media) == 0 { // containerd will say it
		return nil
	}
	counted := make(map[digest.Digest]bool)
	var blobs, snapshots int64
	for _, p := range pulls {
		b, s, err := p.missing(ctx, counted)
		if err != nil {
			return err
		}
		blobs, snapshots = blobs+b, snapshots+s
		for _, m := range media {
			need := &NoSpaceError{Dir: m.dir}
			if m.blobs {
				need.Needed += blobs
			}
			if m.snapshots {
				need.Needed += snapshots
			}
			if need.Free, err = freeAt(m.dir); err != nil {
				return err
			}
			if need.Needed > need.Free {
				return fail(p.want.Ref, &Error{Kind: NoSpace, Err: need})
			}
		}
	}
	return nil
}

// missing is how many bytes an image lacks, without the parts that were counted before.
func (p *pull) missing(ctx context.Context, counted map[digest.Digest]bool) (blobs, snapshots int64, err error) {
	store := p.client.ContentStore()
	snapshotter := p.client.SnapshotService(p.snapshotter)
	for n, layer := range p.layers {
		if !counted[layer.Digest] {
			counted[layer.Digest] = true
			if _, err := store.Info(ctx, layer.Digest); errdefs.IsNotFound(err) {
				blobs += layer.Size
				if status, err := store.Status(ctx, remotes.MakeRefKey(ctx, layer)); err == nil {
					blobs -= min(status.Offset, layer.Size)
				}
			} else if err != nil {
				return 0, 0, err
			}
		}
		chain := p.chain(n)
		if counted[chain] {
			continue
		}
		counted[chain] = true
		if _, err := snapshotter.Stat(ctx, chain.String()); errdefs.IsNotFound(err) {
			snapshots += unpackedSize(ctx, layer)
		} else if err != nil {
			return 0, 0, err
		}
	}
	return blobs, snapshots, nil
}

// unpackedSize estimates how many bytes a layer becomes.
func unpackedSize(ctx context.Context, layer v1.Descriptor) int64 {
	if kind, err := images.DiffCompression(ctx, layer.MediaType); err == nil && kind == "" {
		return layer.Size
	}
	return layer.Size * expansion
}

// freeAt is how many bytes images may still take on the file system of dir.
func freeAt(dir string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("cannot look for free space in %s: %w", dir, err)
	}
	block := int64(fs.Bsize)
	kept := min(reserve, int64(fs.Blocks)*block/reservePart)
	return max(int64(fs.Bavail)*block-kept, 0), nil
}
