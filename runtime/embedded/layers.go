//go:build !slim

package embedded

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"sync"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/typeurl/v2"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// largestWindow is what the decompression of a zstd layer may keep in memory; zstd -19 uses 8 MiB.
const largestWindow = 64 << 20

// decompressHere makes containerd decompress layers in this process. By itself it runs igzip or unpigz where it finds
// them, and decompresses zstd with as much memory as is fastest.
var decompressHere = sync.OnceFunc(func() { diff.RegisterProcessor(decompressor) })

func decompressor(ctx context.Context, mediaType string) (diff.StreamProcessorInit, bool) {
	if kind, err := images.DiffCompression(ctx, mediaType); err != nil || kind == "" {
		return nil, false
	}
	return func(_ context.Context, in diff.StreamProcessor, _ map[string]typeurl.Any) (diff.StreamProcessor, error) {
		layer, err := decompress(in)
		if err != nil {
			return nil, err
		}
		return &plainLayer{layer}, nil
	}, true
}

// decompress goes by what the layer is, since its media type is not always right.
func decompress(in io.Reader) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(in, 32<<10)
	head, err := buffered.Peek(10)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch compression.DetectCompression(bytes.Clone(head)) {
	case compression.Gzip:
		return gzip.NewReader(buffered)
	case compression.Zstd:
		r, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(largestWindow))
		if err != nil {
			return nil, err
		}
		return r.IOReadCloser(), nil
	default:
		return io.NopCloser(buffered), nil
	}
}

// plainLayer is a layer without compression.
type plainLayer struct{ io.ReadCloser }

func (*plainLayer) MediaType() string { return v1.MediaTypeImageLayer }
