package embedded

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/plugins/diff/walking"
	"github.com/containerd/plugin"
	"github.com/moby/sys/userns"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/containerd"
)

// applier unpacks as containerd does, but asks for space first, and bounds size and memory.
type applier struct {
	diff.Comparer
	blobs content.Provider
}

// openApplier stands in for containerd's plugin, also for those who come by its socket.
func openApplier(ic *plugin.InitContext) (any, error) {
	db, err := database(ic)
	if err != nil {
		return nil, err
	}
	return applier{walking.NewWalkingDiff(db.ContentStore()), db.ContentStore()}, nil
}

// Apply takes no options of containerd's: this one is configured with no programs that decrypt layers, and who unpacks one
// syncs the file system when all are there.
func (a applier) Apply(ctx context.Context, layer v1.Descriptor, mounts []mount.Mount, _ ...diff.ApplyOpt) (v1.Descriptor, error) {
	blob, err := a.blobs.ReaderAt(ctx, layer)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("cannot read layer %s: %w", layer.Digest, err)
	}
	defer blob.Close()
	plain, err := decompress(ctx, cancelable{ctx, content.NewReader(blob)})
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("cannot decompress layer %s: %w", layer.Digest, err)
	}
	defer plain.Close()
	read := &spaced{
		from: cancelable{ctx, plain}, digester: digest.Canonical.Digester(), space: containerd.SpaceOf(ctx),
		most: headerSlack, keep: keptMemory(),
	}
	if err := read.unpack(ctx, mounts); err != nil {
		return v1.Descriptor{}, err
	}
	follows, err := io.Copy(io.Discard, io.LimitReader(read, maxPadding+1))
	if err != nil {
		return v1.Descriptor{}, err
	}
	if follows > maxPadding {
		return v1.Descriptor{}, fmt.Errorf("%w: more than %d bytes follow the end of the archive", tar.ErrHeader, maxPadding)
	}
	return v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Size: read.size, Digest: read.digester.Digest()}, nil
}

const (
	maxPadding = 1 << 20 // bytes after the end of an archive

	// headerSlack bounds the bytes of a layer's headers, in addition to headerRoom for each.
	headerSlack = 16 << 20
	headerRoom  = 8 << 10
)

// cancelable is a reader that fails once its context ends: a few bytes may decompress for hours.
type cancelable struct {
	ctx context.Context
	io.Reader
}

func (c cancelable) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.Reader.Read(p)
}

type spaced struct {
	from     io.Reader
	digester digest.Digester
	size     int64            // bytes that have come
	most     int64            // bytes that may have come, by the entries so far
	content  int64            // bytes of files so far
	space    containerd.Space // nil: not asked for
	keep     int64            // bytes of memory that may still be kept of entries
}

func (s *spaced) Read(p []byte) (int, error) {
	n, err := s.from.Read(p)
	_, _ = s.digester.Hash().Write(p[:n]) // a hash does not fail
	s.size += int64(n)
	if s.space != nil {
		s.space.Wrote(int64(n))
	}
	if s.size > s.most {
		return n, fmt.Errorf("%w: more than %d bytes of headers", tar.ErrHeader, s.most-s.content)
	}
	return n, err
}

// unpack writes into the directory of an overlay, which needs no mount, or else into a mount.
func (s *spaced) unpack(ctx context.Context, mounts []mount.Mount) error {
	options := []archive.ApplyOpt{archive.WithFilter(s.take)}
	if len(mounts) == 1 && mounts[0].Type == "overlay" && !userns.RunningInUserNS() {
		if upper, lower := containerd.OverlayDirs(mounts[0]); upper != "" {
			options = append(options, archive.WithConvertWhiteout(func(h *tar.Header, path string) (bool, error) {
				if err := s.retain(int64(len(path))); err != nil {
					return false, err
				}
				return archive.OverlayConvertWhiteout(h, path)
			}))
			if len(lower) > 0 {
				options = append(options, archive.WithParents(lower))
			}
			_, err := archive.Apply(ctx, upper, s, options...)
			return err
		}
	}
	return mount.WithTempMount(ctx, mounts, func(root string) error {
		_, err := archive.Apply(ctx, root, s, options...)
		return err
	})
}

// block is the allocation unit of most file systems, in bytes.
const block = 4096

// maxContent is the maximum size of a layer's files in bytes.
const maxContent = 1 << 40

const (
	// keptPart is the part of the memory that data on the entries of a layer may take, and
	// leastKept what they always may: some 70000 files.
	keptPart  = 8
	leastKept = 16 << 20

	// entryKept is the memory of an entry besides its name, dirKept what a directory and its
	// header add.
	entryKept = 64
	dirKept   = 256

	xattrPrefix = "SCHILY.xattr."
)

var keptMemory = sync.OnceValue(func() int64 { return max(memoryLimit()/keptPart, leastKept) })

// retain fails if data on the entries take more memory than this device can afford.
func (s *spaced) retain(bytes int64) error {
	if s.keep -= bytes; s.keep < 0 {
		return fmt.Errorf("%w: it has too many files, or too long names", containerd.ErrMemory)
	}
	return nil
}

// strip reduces a header to what containerd reads. Until the end of a layer containerd keeps entry
// paths and directory headers, whose strings are parts of a record of up to 1 MiB.
func (s *spaced) strip(h *tar.Header) error {
	kept := int64(entryKept + len(h.Name))
	h.Name = strings.Clone(h.Name)
	h.Linkname = strings.Clone(h.Linkname)
	h.Uname, h.Gname = "", ""
	//lint:ignore SA1019 the reader still fills it
	h.Xattrs = nil
	records := h.PAXRecords
	h.PAXRecords = nil
	for key, value := range records {
		if !strings.HasPrefix(key, xattrPrefix) {
			continue
		}
		if h.PAXRecords == nil {
			h.PAXRecords = make(map[string]string)
		}
		h.PAXRecords[strings.Clone(key)] = strings.Clone(value)
		if h.Typeflag == tar.TypeDir {
			kept += int64(entryKept + len(key) + len(value))
		}
	}
	if h.Typeflag == tar.TypeDir {
		kept += int64(dirKept + len(h.Linkname))
	}
	return s.retain(kept)
}

// take asks for the space of an entry before it is made, including holes, which are written.
func (s *spaced) take(h *tar.Header) (bool, error) {
	if err := s.strip(h); err != nil {
		return false, err
	}
	s.most += headerRoom
	if h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeGNUSparse {
		if h.Size > maxContent-s.content {
			return false, fmt.Errorf("%w: files of more than %d bytes", tar.ErrHeader, int64(maxContent))
		}
		s.content += h.Size
		s.most += h.Size
	}
	if s.space == nil {
		return true, nil
	}
	bytes := int64(0)
	switch h.Typeflag {
	case tar.TypeLink, tar.TypeXGlobalHeader:
		return true, nil
	case tar.TypeReg, tar.TypeGNUSparse:
		bytes = (h.Size + block - 1) / block * block
	case tar.TypeDir, tar.TypeSymlink:
		bytes = block
	}
	if len(h.PAXRecords) > 0 { // extended attributes
		bytes += block
	}
	if err := s.space.Take(bytes, 1); err != nil {
		return false, err
	}
	return true, nil
}
