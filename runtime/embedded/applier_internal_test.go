package embedded

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/mount"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/ociimage"
)

// layer is one that is in the content store, as it is packed.
type layer []byte

func (l layer) ReaderAt(context.Context, v1.Descriptor) (content.ReaderAt, error) {
	return blob{bytes.NewReader(l)}, nil
}

type blob struct{ *bytes.Reader }

func (blob) Close() error { return nil }

// applyTo unpacks a layer into a directory, straight.
func applyTo(ctx context.Context, t *testing.T, dir string, packed []byte) error {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	mounts := []mount.Mount{{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=" + t.TempDir(), "upperdir=" + dir}}}
	_, err := applier{blobs: layer(packed)}.Apply(ctx, v1.Descriptor{Size: int64(len(packed))}, mounts)
	return err
}

// plenty is a space that never ends. It fails a test that takes a negative amount of it.
type plenty struct{ t *testing.T }

func (p plenty) Take(bytes, _ int64) error {
	expect.True(p.t, bytes >= 0, "%d bytes were taken", bytes)
	return nil
}

func (plenty) Wrote(int64) {}

// header is one entry as it is written down.
func header(t *testing.T, h *tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	check(t, tar.NewWriter(&b).WriteHeader(h))
	return b.Bytes()
}

// No entry is so big that the arithmetic of its space overflows.
func TestAnEntryOfAbsurdSizeIsRefused(t *testing.T) {
	for _, size := range []int64{1<<63 - 1, 1<<63 - block, 1 << 50} {
		packed := header(t, &tar.Header{Name: "big", Typeflag: tar.TypeReg, Size: size, Format: tar.FormatGNU})
		err := applyTo(containerd.WithSpace(t.Context(), plenty{t}), t, t.TempDir(), packed)
		if err == nil || errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "tar header") {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// What containerd keeps of a layer's entries until the end is small, whatever their headers hold.
func TestHeadersTakeLittleMemory(t *testing.T) {
	const entries, each = 100, 1 << 20
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for n := range entries {
		err := w.WriteHeader(&tar.Header{
			Name: fmt.Sprintf("dir%d/", n), Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatPAX,
			PAXRecords: map[string]string{"comment": strings.Repeat("x", each-100), "SCHILY.xattr.user.name": "value", "GNU.other": "x"},
		})
		check(t, err)
	}
	s := &spaced{space: plenty{t}, keep: leastKept}
	r := tar.NewReader(&packed)
	var kept []*tar.Header
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			_, err = s.take(h)
		}
		check(t, err)
		if len(h.PAXRecords) != 1 || h.PAXRecords["SCHILY.xattr.user.name"] != "value" {
			t.Fatalf("%d records are kept of %s", len(h.PAXRecords), h.Name)
		}
		kept = append(kept, h)
	}
	packed = bytes.Buffer{}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if len(kept) != entries || m.HeapAlloc > entries*each/4 {
		t.Errorf("%d headers, with %d MiB in use", len(kept), m.HeapAlloc>>20)
	}
	runtime.KeepAlive(kept)
}

// A layer whose entries need more memory than there is for them is refused.
func TestEntriesThatNeedTooMuchMemoryAreRefused(t *testing.T) {
	for name, h := range map[string]tar.Header{
		"files":       {Name: "some/file", Typeflag: tar.TypeReg},
		"directories": {Name: "some", Typeflag: tar.TypeDir},
		"links":       {Name: "some/file", Typeflag: tar.TypeLink, Linkname: "file"},
		"attributes":  {Name: "some", Typeflag: tar.TypeDir, PAXRecords: map[string]string{"SCHILY.xattr.user.name": strings.Repeat("x", 60<<10)}},
	} {
		s := &spaced{space: plenty{t}, keep: 100 << 10}
		var err error
		for n := 0; n < 10000 && err == nil; n++ {
			entry := h
			_, err = s.take(&entry)
		}
		expect.Error(t, err, containerd.ErrMemory, "%s", name)
	}
}

// Extended attributes come with their files.
func TestExtendedAttributesAreKept(t *testing.T) {
	dir := t.TempDir()
	packed := header(t, &tar.Header{
		Name: "file", Typeflag: tar.TypeReg, Mode: 0o600, Format: tar.FormatPAX,
		PAXRecords: map[string]string{"comment": "x", "SCHILY.xattr.user.name": "value"},
	})
	check(t, applyTo(t.Context(), t, dir, packed))
	value := make([]byte, 10)
	n, err := unix.Getxattr(filepath.Join(dir, "file"), "user.name", value)
	if err != nil || string(value[:n]) != "value" {
		t.Errorf("%q, %v", value[:max(n, 0)], err)
	}
}

// zeros is a stream of so many bytes, which takes little.
func zeros(t *testing.T, size int) []byte {
	t.Helper()
	const part = 16 << 20
	return bytes.Repeat(zipped(t, make([]byte, min(size, part))), max(size/part, 1))
}

func zipped(t *testing.T, plain []byte) []byte {
	t.Helper()
	return expect.Value(ociimage.Gzip(plain))(t)
}

// An archive may be padded, and not for hours.
func TestWhatFollowsAnArchiveIsBounded(t *testing.T) {
	end := zipped(t, make([]byte, 1024))
	for name, c := range map[string]struct {
		follows int
		refused bool
	}{"padding": {512 << 10, false}, "a bomb": {64 << 20, true}} {
		err := applyTo(t.Context(), t, t.TempDir(), slices.Concat(end, zeros(t, c.follows)))
		expect.True(t, (err != nil) == c.refused && (!c.refused || errors.Is(err, tar.ErrHeader)), "%s: %v", name, err)
	}
}

// What is read of a layer is in proportion to what its entries hold.
func TestHeadersAreBounded(t *testing.T) {
	var packed []byte
	for n := range 64 {
		packed = append(packed, zipped(t, header(t, &tar.Header{
			Name: fmt.Sprint("link", n), Linkname: "file", Typeflag: tar.TypeLink, Format: tar.FormatPAX,
			PAXRecords: map[string]string{"comment": strings.Repeat("x", 1<<20-100)},
		}))...)
	}
	file := header(t, &tar.Header{Name: "file", Typeflag: tar.TypeReg})
	err := applyTo(t.Context(), t, t.TempDir(), slices.Concat(zipped(t, file), packed))
	expect.Error(t, err, tar.ErrHeader, "error")
}

// A layer that is given up is not read to its end.
func TestALayerIsGivenUp(t *testing.T) {
	given := errors.New("given up")
	ctx, cancel := context.WithCancelCause(containerd.WithSpace(t.Context(), plenty{t}))
	// Nothing is written of what says that a file goes.
	packed := slices.Concat(zipped(t, header(t, &tar.Header{Name: ".wh.file", Typeflag: tar.TypeReg, Size: 1 << 30})), zeros(t, 1<<30))
	read := 0
	l := &watchedLayer{layer: packed, read: func(n int) {
		if read += n; read > 64<<10 {
			cancel(given)
		}
	}}
	mounts := []mount.Mount{{Type: "overlay", Source: "overlay", Options: []string{"upperdir=" + t.TempDir()}}}
	_, err := applier{blobs: l}.Apply(ctx, v1.Descriptor{Size: int64(len(packed))}, mounts)
	expect.True(t, errors.Is(err, given) && read <= len(packed)/2, "%v after %d of %d bytes", err, read, len(packed))
}

// watchedLayer is a layer that tells what is read of it.
type watchedLayer struct {
	layer
	read func(int)
}

func (l *watchedLayer) ReaderAt(context.Context, v1.Descriptor) (content.ReaderAt, error) {
	return watchedBlob{blob{bytes.NewReader(l.layer)}, l.read}, nil
}

type watchedBlob struct {
	blob
	read func(int)
}

func (b watchedBlob) ReadAt(p []byte, offset int64) (int, error) {
	n, err := b.blob.ReadAt(p, offset)
	b.read(n)
	return n, err
}

var check = expect.Check
