package external

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

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
	digest digest.Digest // by the last answer that told it
	closed bool
}

func newIngest(ctx context.Context, w *wire, ref string) *ingest {
	body, send := io.Pipe()
	return &ingest{ref: ref, stream: w.start(ctx, contentService+"Write", body), send: send}
}

// What a step of writing does.
const (
	writeStat   = 0
	writeData   = 1
	writeCommit = 2
)

// writeStep is a step of writing.
type writeStep struct {
	action   int32
	ref      string
	total    int64
	expected digest.Digest
	offset   int64
	data     []byte
	labels   map[string]string
}

func (w *writeStep) message(c *coder) {
	c.int32(1, &w.action)
	c.text(2, &w.ref)
	c.int64(3, &w.total)
	c.text(4, (*string)(&w.expected))
	c.int64(5, &w.offset)
	c.bytes(6, &w.data)
	c.labels(7, &w.labels)
}

// exchange sends one step and waits for the answer: how many bytes containerd has then.
func (i *ingest) exchange(step writeStep) (offset int64, err error) {
	if i.closed {
		return 0, fmt.Errorf("%s is closed: %w", i.ref, errdefs.ErrFailedPrecondition)
	}
	sent, err := frame(step.message)
	if err != nil {
		return 0, err
	}
	// What cannot be sent any more has an answer that says why.
	_, sendErr := i.send.Write(sent)
	err = i.stream.receive(func(c *coder) {
		c.int64(4, &offset)
		c.text(6, (*string)(&i.digest))
	})
	if err != nil {
		return 0, whole(err)
	}
	if sendErr != nil {
		return 0, fmt.Errorf("%s: %w", i.stream.method, broken(i.stream.ctx, sendErr))
	}
	return offset, nil
}

func (i *ingest) Write(p []byte) (n int, err error) {
	for chunk := range slices.Chunk(p, maxChunk) {
		offset, err := i.exchange(writeStep{action: writeData, offset: i.offset, data: chunk})
		if err != nil {
			return n, fmt.Errorf("cannot write %s: %w", i.ref, err)
		}
		written := offset - i.offset
		if written < 0 || written > int64(len(chunk)) {
			return n, fmt.Errorf("cannot write %s: %w: it is at byte %d", i.ref, errFrame, offset)
		}
		i.offset += written
		n += int(written)
		if int(written) < len(chunk) {
			return n, io.ErrShortWrite
		}
	}
	return n, nil
}

func (i *ingest) Commit(_ context.Context, size int64, expected digest.Digest, labels map[string]string) error {
	offset, err := i.exchange(writeStep{
		action: writeCommit, total: size, offset: i.offset, expected: expected, labels: labels,
	})
	if err == nil && size != 0 && offset != size {
		err = fmt.Errorf("it has %d bytes instead of %d", offset, size)
	}
	if err == nil && expected != "" && i.digest != expected {
		err = fmt.Errorf("it is %s instead of %s", i.digest, expected)
	}
	if err != nil {
		err = fmt.Errorf("cannot commit %s: %w", i.ref, err)
	}
	return errors.Join(err, i.Close())
}

// Offset is how many bytes containerd has, or is to go on from.
func (i *ingest) Offset() int64 { return i.offset }

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
