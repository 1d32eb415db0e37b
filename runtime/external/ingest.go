package external

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

const (
	// maxChunk is how many bytes are sent with one message.
	maxChunk = 1 << 20

	// closeTimeout is how long containerd may take to let go of what was written.
	closeTimeout = 10 * time.Second
)

// ingest is a blob that is being written, in steps that containerd answers each.
type ingest struct {
	ref    string
	stream *stream
	send   *io.PipeWriter
	offset int64
	digest digest.Digest // by the last answer
	closed bool
}

func newIngest(ctx context.Context, w *wire, ref string) *ingest {
	body, send := io.Pipe()
	return &ingest{ref: ref, stream: w.open(ctx, contentService+"Write", body), send: send}
}

// exchange sends one step and waits for the answer.
func (i *ingest) exchange(step *contentapi.WriteContentRequest) (*contentapi.WriteContentResponse, error) {
	if i.closed {
		return nil, fmt.Errorf("%s is closed: %w", i.ref, errdefs.ErrFailedPrecondition)
	}
	sent, err := frame(step)
	if err != nil {
		return nil, err
	}
	// What cannot be sent any more has an answer that says why.
	_, sendErr := i.send.Write(sent)
	got := new(contentapi.WriteContentResponse)
	if err := i.stream.receive(got); err != nil {
		return nil, whole(err)
	}
	if sendErr != nil {
		return nil, fmt.Errorf("%s: %w", i.stream.method, broken(i.stream.ctx, sendErr))
	}
	if d := got.GetDigest(); d != "" {
		i.digest = digest.Digest(d)
	}
	return got, nil
}

func (i *ingest) Write(p []byte) (n int, err error) {
	for chunk := range slices.Chunk(p, maxChunk) {
		got, err := i.exchange(&contentapi.WriteContentRequest{Action: contentapi.WriteAction_WRITE, Offset: i.offset, Data: chunk})
		if err != nil {
			return n, fmt.Errorf("cannot write %s: %w", i.ref, err)
		}
		written := got.GetOffset() - i.offset
		if written < 0 || written > int64(len(chunk)) {
			return n, fmt.Errorf("cannot write %s: %w: it is at byte %d", i.ref, errFrame, got.GetOffset())
		}
		i.offset += written
		n += int(written)
		if int(written) < len(chunk) {
			return n, io.ErrShortWrite
		}
	}
	return n, nil
}

func (i *ingest) Commit(_ context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	var info content.Info
	for _, opt := range opts {
		if err := opt(&info); err != nil {
			return errors.Join(err, i.Close())
		}
	}
	got, err := i.exchange(&contentapi.WriteContentRequest{
		Action: contentapi.WriteAction_COMMIT, Total: size, Offset: i.offset, Expected: expected.String(), Labels: info.Labels,
	})
	if err == nil && size != 0 && got.GetOffset() != size {
		err = fmt.Errorf("it has %d bytes instead of %d", got.GetOffset(), size)
	}
	if err == nil && expected != "" && i.digest != expected {
		err = fmt.Errorf("it is %s instead of %s", i.digest, expected)
	}
	if err != nil {
		err = fmt.Errorf("cannot commit %s: %w", i.ref, err)
	}
	return errors.Join(err, i.Close())
}

func (i *ingest) Status() (content.Status, error) {
	got, err := i.exchange(&contentapi.WriteContentRequest{Action: contentapi.WriteAction_STAT})
	return content.Status{
		Ref: i.ref, Offset: got.GetOffset(), Total: got.GetTotal(),
		StartedAt: protobuf.FromTimestamp(got.GetStartedAt()), UpdatedAt: protobuf.FromTimestamp(got.GetUpdatedAt()),
	}, err
}

// Digest is that of what containerd has, as far as it has told.
func (i *ingest) Digest() digest.Digest { return i.digest }

// Truncate takes effect with the next Write or Commit.
func (i *ingest) Truncate(size int64) error {
	i.offset = size
	return nil
}

// Close waits until containerd has let go of what was written: another may go on with it then.
func (i *ingest) Close() error {
	if i.closed {
		return nil
	}
	i.closed = true
	_ = i.send.Close() // never fails
	late := time.AfterFunc(closeTimeout, i.stream.cancel)
	defer late.Stop()
	_ = i.stream.end() // whatever it says, it is over
	i.stream.close()
	return nil
}
