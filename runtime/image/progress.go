package image

import "sync"

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

// tally is what of one part counts as done, whichever host it came from.
type tally struct {
	meter *meter
	bytes int64
}

// reached says that so many bytes are there.
func (t *tally) reached(bytes int64) {
	t.meter.done(bytes - t.bytes)
	t.bytes = bytes
}
