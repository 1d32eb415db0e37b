//go:build !slim

package embedded

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/containerd"
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
	mounts := []containerd.Mount{{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=" + t.TempDir(), "upperdir=" + dir}}}
	_, err := applier{layer(packed)}.Apply(ctx, v1.Descriptor{Size: int64(len(packed))}, mounts)
	return err
}

// plenty is a space that never ends. It fails a test that takes a negative amount of it.
type plenty struct{ t *testing.T }

func (p plenty) Take(bytes, _ int64) error {
	if bytes < 0 {
		p.t.Errorf("%d bytes were taken", bytes)
	}
	return nil
}

func (plenty) Wrote(int64) {}

// header is one entry as it is written down.
func header(t *testing.T, h *tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(h); err != nil {
		t.Fatal(err)
	}
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
