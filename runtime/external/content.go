package external

import (
	"context"
	"io"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/containerd"
)

type contents struct{ wire *wire }

const contentService = "content.v1.Content/"

func (r contents) Info(ctx context.Context, d digest.Digest) (got containerd.ContentInfo, err error) {
	err = r.wire.call(ctx, contentService+"Info", texts(d.String()), only(contentInfo(&got)))
	return got, err
}

func (r contents) Label(ctx context.Context, d digest.Digest, labels map[string]string) error {
	if len(labels) == 0 {
		return nil // without a mask, all labels would go
	}
	wanted := containerd.ContentInfo{Digest: d, Labels: labels}
	var fields []string
	for key := range labels {
		fields = append(fields, "labels."+key)
	}
	return r.wire.call(ctx, contentService+"Update", func(c *coder) {
		c.message(1, contentInfo(&wanted))
		mask(c, 2, fields)
	}, nothing)
}

func (r contents) Delete(ctx context.Context, d digest.Digest) error {
	return r.wire.call(ctx, contentService+"Delete", texts(d.String()), nothing)
}

func (r contents) Status(ctx context.Context, ref string) (got containerd.Ingest, err error) {
	err = r.wire.call(ctx, contentService+"Status", texts(ref), only(ingestStatus(&got)))
	return got, err
}

func (r contents) Ingests(ctx context.Context, filters ...string) (all []containerd.Ingest, err error) {
	err = r.wire.call(ctx, contentService+"ListStatuses", those(filters), func(c *coder) { list(c, 1, &all, ingestStatus) })
	return all, err
}

func (r contents) Abort(ctx context.Context, ref string) error {
	return r.wire.call(ctx, contentService+"Abort", texts(ref), nothing)
}

func (r contents) Open(ctx context.Context, d digest.Digest) (containerd.Blob, error) {
	info, err := r.Info(ctx, d)
	if err != nil {
		return nil, err
	}
	return &blob{ctx, r.wire, info}, nil
}

// blob is one that containerd has as a whole.
type blob struct {
	ctx  context.Context
	wire *wire
	info containerd.ContentInfo
}

func (b *blob) Size() int64 { return b.info.Size }

func (b *blob) Close() error { return nil }

func (b *blob) ReadAt(p []byte, off int64) (n int, err error) {
	if off >= b.info.Size {
		return 0, io.EOF
	}
	wanted := p[:min(int64(len(p)), b.info.Size-off)]
	if len(wanted) == 0 {
		return 0, nil
	}
	s, err := b.wire.ask(b.ctx, contentService+"Read", part(b.info.Digest, off, int64(len(wanted))))
	if err != nil {
		return 0, err
	}
	defer s.close()
	for n < len(wanted) {
		var data []byte
		if err := s.receive(func(c *coder) { c.bytes(2, &data) }); err != nil {
			return n, whole(err)
		}
		n += copy(wanted[n:], data)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (r contents) Writer(ctx context.Context, ref string, desc v1.Descriptor) (containerd.Writer, error) {
	w := newIngest(ctx, r.wire, ref)
	offset, err := w.exchange(writeStep{action: writeStat, ref: ref, total: desc.Size, expected: desc.Digest})
	if err != nil {
		w.stream.close()
		return nil, err
	}
	w.offset = offset
	return w, nil
}

func contentInfo(of *containerd.ContentInfo) message {
	return func(c *coder) {
		c.text(1, (*string)(&of.Digest))
		c.int64(2, &of.Size)
		c.time(3, &of.CreatedAt)
		c.time(4, &of.UpdatedAt)
		c.labels(5, &of.Labels)
	}
}

func ingestStatus(of *containerd.Ingest) message {
	return func(c *coder) {
		c.time(1, &of.StartedAt)
		c.time(2, &of.UpdatedAt)
		c.text(3, &of.Ref)
		c.int64(4, &of.Offset)
		c.int64(5, &of.Total)
		c.text(6, (*string)(&of.Expected))
	}
}

// part asks for a part of a blob.
func part(d digest.Digest, offset, size int64) message {
	return func(c *coder) {
		c.text(1, (*string)(&d))
		c.int64(2, &offset)
		c.int64(3, &size)
	}
}
