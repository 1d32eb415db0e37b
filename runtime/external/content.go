package external

import (
	"context"
	"io"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

type contents struct{ wire *wire }

const contentService = "content.v1.Content/"

func (c contents) Info(ctx context.Context, d digest.Digest) (content.Info, error) {
	r := &contentapi.InfoRequest{Digest: d.String()}
	got, err := call(ctx, c.wire, contentService+"Info", r, new(contentapi.InfoResponse))
	return blobOf(got.GetInfo()), err
}

func (c contents) Update(ctx context.Context, info content.Info, fieldpaths ...string) (content.Info, error) {
	r := &contentapi.UpdateRequest{
		Info: &contentapi.Info{Digest: info.Digest.String(), Labels: info.Labels}, UpdateMask: mask(fieldpaths),
	}
	got, err := call(ctx, c.wire, contentService+"Update", r, new(contentapi.UpdateResponse))
	return blobOf(got.GetInfo()), err
}

func (c contents) Walk(ctx context.Context, fn content.WalkFunc, filters ...string) error {
	r := &contentapi.ListContentRequest{Filters: filters}
	return receiveAll(ctx, c.wire, contentService+"List", r, func(got *contentapi.ListContentResponse) error {
		for _, info := range got.GetInfo() {
			if err := fn(blobOf(info)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c contents) Delete(ctx context.Context, d digest.Digest) error {
	return do(ctx, c.wire, contentService+"Delete", &contentapi.DeleteContentRequest{Digest: d.String()})
}

func (c contents) Status(ctx context.Context, ref string) (content.Status, error) {
	r := &contentapi.StatusRequest{Ref: ref}
	got, err := call(ctx, c.wire, contentService+"Status", r, new(contentapi.StatusResponse))
	return ingestOf(got.GetStatus()), err
}

func (c contents) ListStatuses(ctx context.Context, filters ...string) ([]content.Status, error) {
	r := &contentapi.ListStatusesRequest{Filters: filters}
	got, err := call(ctx, c.wire, contentService+"ListStatuses", r, new(contentapi.ListStatusesResponse))
	return each(got.GetStatuses(), ingestOf), err
}

func (c contents) Abort(ctx context.Context, ref string) error {
	return do(ctx, c.wire, contentService+"Abort", &contentapi.AbortRequest{Ref: ref})
}

// ReaderAt reads within ctx.
func (c contents) ReaderAt(ctx context.Context, desc v1.Descriptor) (content.ReaderAt, error) {
	info, err := c.Info(ctx, desc.Digest)
	if err != nil {
		return nil, err
	}
	return &blob{ctx, c.wire, info}, nil
}

// blob is one that containerd has as a whole.
type blob struct {
	ctx  context.Context
	wire *wire
	info content.Info
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
	r := &contentapi.ReadContentRequest{Digest: b.info.Digest.String(), Offset: off, Size: int64(len(wanted))}
	s, err := b.wire.ask(b.ctx, contentService+"Read", r)
	if err != nil {
		return 0, err
	}
	defer s.close()
	for n < len(wanted) {
		var got contentapi.ReadContentResponse
		if err := s.receive(&got); err != nil {
			return n, whole(err)
		}
		n += copy(wanted[n:], got.GetData())
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Writer writes within ctx.
func (c contents) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	w := newIngest(ctx, c.wire, o.Ref)
	got, err := w.exchange(&contentapi.WriteContentRequest{
		Action: contentapi.WriteAction_STAT, Ref: o.Ref, Total: o.Desc.Size, Expected: o.Desc.Digest.String(),
	})
	if err != nil {
		w.stream.close()
		return nil, err
	}
	w.offset = got.GetOffset()
	return w, nil
}

func blobOf(i *contentapi.Info) content.Info {
	return content.Info{
		Digest: digest.Digest(i.GetDigest()), Size: i.GetSize(), Labels: i.GetLabels(),
		CreatedAt: protobuf.FromTimestamp(i.GetCreatedAt()), UpdatedAt: protobuf.FromTimestamp(i.GetUpdatedAt()),
	}
}

func ingestOf(s *contentapi.Status) content.Status {
	return content.Status{
		Ref: s.GetRef(), Offset: s.GetOffset(), Total: s.GetTotal(), Expected: digest.Digest(s.GetExpected()),
		StartedAt: protobuf.FromTimestamp(s.GetStartedAt()), UpdatedAt: protobuf.FromTimestamp(s.GetUpdatedAt()),
	}
}
