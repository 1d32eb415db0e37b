//go:build !slim

package embedded

import (
	"context"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/margolite/margolite/runtime/containerd"
)

type contentStore struct{ direct content.Store }

func (s contentStore) Info(ctx context.Context, d digest.Digest) (containerd.ContentInfo, error) {
	info, err := s.direct.Info(within(ctx), d)
	return containerd.ContentInfo(info), err
}

func (s contentStore) Label(ctx context.Context, d digest.Digest, labels map[string]string) error {
	fields := make([]string, 0, len(labels))
	for key := range labels {
		fields = append(fields, "labels."+key)
	}
	if len(fields) == 0 { // would mean all
		return nil
	}
	_, err := s.direct.Update(within(ctx), content.Info{Digest: d, Labels: labels}, fields...)
	return err
}

func (s contentStore) Delete(ctx context.Context, d digest.Digest) error {
	return s.direct.Delete(within(ctx), d)
}

func (s contentStore) Open(ctx context.Context, d digest.Digest) (containerd.Blob, error) {
	return s.direct.ReaderAt(within(ctx), v1.Descriptor{Digest: d})
}

func (s contentStore) Writer(ctx context.Context, ref string, desc v1.Descriptor) (containerd.Writer, error) {
	w, err := s.direct.Writer(within(ctx), content.WithRef(ref), content.WithDescriptor(desc))
	if err != nil {
		return nil, err
	}
	status, err := w.Status()
	if err != nil {
		_ = w.Close()
		return nil, err
	}
	return &writer{direct: w, offset: status.Offset}, nil
}

func (s contentStore) Status(ctx context.Context, ref string) (containerd.Ingest, error) {
	status, err := s.direct.Status(within(ctx), ref)
	return containerd.Ingest(status), err
}

func (s contentStore) Ingests(ctx context.Context, filters ...string) ([]containerd.Ingest, error) {
	all, err := s.direct.ListStatuses(within(ctx), filters...)
	if err != nil {
		return nil, err
	}
	list := make([]containerd.Ingest, len(all))
	for i, status := range all {
		list[i] = containerd.Ingest(status)
	}
	return list, nil
}

func (s contentStore) Abort(ctx context.Context, ref string) error {
	return s.direct.Abort(within(ctx), ref)
}

// writer counts along, since asking takes a transaction.
type writer struct {
	direct content.Writer
	offset int64
}

func (w *writer) Write(p []byte) (int, error) {
	n, err := w.direct.Write(p)
	w.offset += int64(n)
	return n, err
}

func (w *writer) Offset() int64 { return w.offset }

func (w *writer) Truncate(size int64) error {
	err := w.direct.Truncate(size)
	if err == nil {
		w.offset = size
	}
	return err
}

func (w *writer) Commit(ctx context.Context, size int64, expected digest.Digest, labels map[string]string) error {
	var opts []content.Opt
	if len(labels) > 0 {
		opts = append(opts, content.WithLabels(labels))
	}
	return w.direct.Commit(within(ctx), size, expected, opts...)
}

func (w *writer) Close() error { return w.direct.Close() }
