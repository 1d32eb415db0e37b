package embedded

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/expect"
)

// Layers that a few bytes blow up to a big window are refused by a device that has no memory for it, and those of a usual
// window take turns.
func TestZstdWindowsStayWithinTheMemory(t *testing.T) {
	plain := make([]byte, 4<<20)
	packed := func(window int) []byte {
		var b bytes.Buffer
		z, err := zstd.NewWriter(&b, zstd.WithWindowSize(window))
		check(t, err)
		_, err = z.Write(plain)
		check(t, errors.Join(err, z.Close()))
		return b.Bytes()
	}
	usual, big := packed(usualWindow), packed(64<<20)
	budget := newWindowBudget(64 << 20)
	open := func(layer []byte) (io.ReadCloser, error) {
		return budget.decompress(t.Context(), bytes.NewReader(layer), layer[:zstd.HeaderMaxSize])
	}
	expect.Error(t, expect.ErrorOf(open(big)), containerd.ErrMemory, "a big window")
	first := expect.Value(open(slices.Concat(usual, big)))(t)
	expect.Equal(t, budget.held.TryAcquire(1), false, "there is memory left")
	if got, err := io.ReadAll(first); !errors.Is(err, containerd.ErrMemory) || !bytes.Equal(got, plain) {
		t.Errorf("a big window behind a usual one: %d bytes, %v", len(got), err)
	}
	expect.OK(t, first.Close())
	second := expect.Value(open(usual))(t)
	defer second.Close()
	if got, err := io.ReadAll(second); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("a usual window: %d bytes, %v", len(got), err)
	}
}
