package image

import (
	"sync"
)

// Progress is how much of one object is on the device. Total grows until the manifest is known.
type Progress struct {
	Object      string
	Done, Total int64
	// Slow says why nothing comes, or less than it should: for people. Empty: it makes progress. A Progress is reported
	// whenever it changes, also while not a byte comes.
	Slow string
	// Waits says that Slow is but the wait for others who came first: no registry that this one needs is known to be slow.
	Waits bool
	// Unpacks is not 0 just before the first layer is unpacked: the layers that then are still to be, of all images that are
	// brought together.
	Unpacks int
}

// meter adds up the progress of the parts of one object.
type meter struct {
	report func(Progress) // nil: nobody listens

	mu   *sync.Mutex // also held while reporting, so reports come in order; of all objects of a call
	sum  Progress
	runs map[*run]bool // the downloads that are under way, or wait

	changed func() // is called when Slow changes; nil: nobody waits for that
}

func newMeter(object string, report func(Progress), reporting *sync.Mutex) *meter {
	return &meter{report: report, mu: reporting, sum: Progress{Object: object}, runs: make(map[*run]bool)}
}

// unpacks tells that layers are about to be unpacked.
func (m *meter) unpacks(layers int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.report != nil {
		told := m.sum
		told.Unpacks = layers
		m.report(told)
	}
}

// add adds to what is done, less than 0 when a part starts again, and to what there is to do.
func (m *meter) add(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sum.Done += done
	m.sum.Total += total
	if m.report != nil && (done != 0 || total != 0) {
		m.report(m.sum)
	}
}

// run is one download of an object, whichever host it comes from, or a wait. Whether it is slow counts from its first note
// to its end.
type run struct {
	of          *meter
	done, total int64  // bytes that count
	slow        string // empty: it makes progress
	waits       bool   // for others alone
}

// reached says that so many bytes are there.
func (r *run) reached(bytes int64) { r.set(bytes, r.total) }

// Write counts what is stored.
func (r *run) Write(p []byte) (int, error) {
	r.reached(r.done + int64(len(p)))
	return len(p), nil
}

func (r *run) set(done, total int64) {
	r.of.add(done-r.done, total-r.total)
	r.done, r.total = done, total
}

// note says why the download is slow, empty if it is not, and whether it only waits for others.
func (r *run) note(slow string, waits bool) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.slow, r.waits = slow, waits
	r.of.runs[r] = true
	r.of.tell()
}

func (r *run) end() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	delete(r.of.runs, r)
	r.of.tell()
}

// tell reports a change of Slow or Waits. An object is slow when all of its downloads are.
func (m *meter) tell() {
	slow, waits := "", false
	for r := range m.runs {
		if r.slow == "" {
			slow, waits = "", false
			break
		}
		if slow == "" || waits && !r.waits || waits == r.waits && r.slow < slow {
			slow, waits = r.slow, r.waits
		}
	}
	if slow == m.sum.Slow && waits == m.sum.Waits {
		return
	}
	m.sum.Slow, m.sum.Waits = slow, waits
	if m.changed != nil {
		m.changed()
	}
	if m.report != nil {
		m.report(m.sum)
	}
}

// isSlow says whether the object waits for its downloads.
func (m *meter) isSlow() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sum.Slow != ""
}
