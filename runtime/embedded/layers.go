package embedded

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/semaphore"

	"github.com/margolite/margolite/runtime/containerd"
)

const (
	// largestWindow is the memory for a zstd window if there is plenty, usualWindow that of zstd -19.
	largestWindow = 64 << 20
	usualWindow   = 8 << 20
	// windowPart is the part of the memory for all windows; decompression takes almost twice that.
	windowPart = 8
)

// windows is the memory for zstd windows of the whole process.
var windows = sync.OnceValue(func() *windowBudget { return newWindowBudget(memoryLimit()) })

type windowBudget struct {
	limit, largest int64
	held           *semaphore.Weighted
}

func newWindowBudget(memory int64) *windowBudget {
	all := max(memory/windowPart, 1<<20)
	return &windowBudget{limit: memory, largest: min(all, largestWindow), held: semaphore.NewWeighted(all)}
}

// decompress detects the format, as media types may be wrong. It waits while others use the memory.
func decompress(ctx context.Context, in io.Reader) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(in, 32<<10)
	head, err := buffered.Peek(zstd.HeaderMaxSize)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch compression.DetectCompression(bytes.Clone(head)) {
	case compression.Gzip:
		return gzip.NewReader(buffered)
	case compression.Zstd:
		return windows().decompress(ctx, buffered, head)
	default:
		return io.NopCloser(buffered), nil
	}
}

// decompress reads a zstd layer that begins with head.
func (b *windowBudget) decompress(ctx context.Context, in io.Reader, head []byte) (io.ReadCloser, error) {
	window := b.largest
	var first zstd.Header
	// Later frames are like the first one, unless that was too small to need a window.
	if err := first.Decode(head); err == nil && !first.Skippable && !first.SingleSegment {
		if first.WindowSize > uint64(b.largest) {
			return nil, fmt.Errorf("%w: its zstd window is %d bytes; with %d bytes of memory the limit is %d",
				containerd.ErrMemory, first.WindowSize, b.limit, b.largest)
		}
		window = min(max(int64(first.WindowSize), usualWindow), b.largest)
	}
	if err := b.held.Acquire(ctx, window); err != nil {
		return nil, err
	}
	r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(uint64(window)))
	if err != nil {
		b.held.Release(window)
		return nil, err
	}
	return &zstdLayer{Decoder: r, budget: b, window: window}, nil
}

type zstdLayer struct {
	*zstd.Decoder
	budget *windowBudget
	window int64
}

func (l *zstdLayer) Read(p []byte) (int, error) {
	n, err := l.Decoder.Read(p)
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		err = fmt.Errorf("%w: it has a zstd window of more than %d bytes", containerd.ErrMemory, l.window)
	}
	return n, err
}

func (l *zstdLayer) Close() error {
	l.Decoder.Close()
	l.budget.held.Release(l.window)
	return nil
}
