package image

import (
	"context"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
)

// Progress is how much of one object is on the device. Total grows until the manifest is known.
type Progress struct {
	Object      string
	Done, Total int64
}

// meter adds up the progress of the parts of one object.
type meter struct {
	report func(Progress) // nil: nobody listens

	mu  *sync.Mutex // also held while reporting, so reports come in order; of all objects of a call
	sum Progress
}

func newMeter(object string, report func(Progress), reporting *sync.Mutex) *meter {
	return &meter{report: report, mu: reporting, sum: Progress{Object: object}}
}

// expect adds to what there is to do.
func (m *meter) expect(bytes int64) { m.add(0, bytes) }

// done adds to what is done; it is negative when a part starts again.
func (m *meter) done(bytes int64) { m.add(bytes, 0) }

func (m *meter) add(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sum.Done += done
	m.sum.Total += total
	if m.report != nil && done+total != 0 {
		m.report(m.sum)
	}
}

// counted is a content store that tells a meter what is written, and what was there before.
type counted struct {
	content.Ingester
	meter *meter
	size  int64 // of the part
}

func (c counted) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	w, err := c.Ingester.Writer(ctx, opts...)
	if errdefs.IsAlreadyExists(err) {
		c.meter.done(c.size)
	}
	if err != nil {
		return nil, err
	}
	status, err := w.Status()
	if err != nil {
		w.Close()
		return nil, err
	}
	c.meter.done(status.Offset)
	return &countedWriter{w, c.meter, status.Offset}, nil
}

type countedWriter struct {
	content.Writer
	meter  *meter
	offset int64
}

func (w *countedWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.offset += int64(n)
	w.meter.done(int64(n))
	return n, err
}

func (w *countedWriter) Truncate(size int64) error {
	if err := w.Writer.Truncate(size); err != nil {
		return err
	}
	w.meter.done(size - w.offset)
	w.offset = size
	return nil
}
