package image

import (
	"sync"
)

// Progress is how much of one object is present. Total grows until the manifest is known.
type Progress struct {
	Object      string
	Done, Total int64
	// Slow says why a download stalls or is slow, for people; "" if not. Changes are reported at once.
	Slow string
	// Waits says that Slow is only a wait for earlier downloads: no registry needed is known to be slow.
	Waits bool
	// Unpacks is the number of layers of all images just before the first is unpacked, otherwise 0.
	Unpacks int
}

type meter struct {
	report func(Progress) // nil: none

	mu   *sync.Mutex // also held while reporting, so reports come in order; of all objects of a call
	sum  Progress
	runs map[*run]bool // the downloads that are under way, or wait

	changed func() // is called when Slow changes; may be nil
}

func newMeter(object string, report func(Progress), reporting *sync.Mutex) *meter {
	return &meter{report: report, mu: reporting, sum: Progress{Object: object}, runs: make(map[*run]bool)}
}

func (m *meter) unpacks(layers int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.report != nil {
		told := m.sum
		told.Unpacks = layers
		m.report(told)
	}
}

// add adds to the bytes done, negative for a part that restarts, and to the total.
func (m *meter) add(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sum.Done += done
	m.sum.Total += total
	if m.report != nil && (done != 0 || total != 0) {
		m.report(m.sum)
	}
}

// run is one download of an object, or a wait. It may be slow from its first note to its end.
type run struct {
	of          *meter
	done, total int64  // bytes that count
	slow        string // empty: it makes progress
	waits       bool   // for others alone
}

func (r *run) reached(bytes int64) { r.set(bytes, r.total) }

// Write counts stored bytes.
func (r *run) Write(p []byte) (int, error) {
	r.reached(r.done + int64(len(p)))
	return len(p), nil
}

func (r *run) set(done, total int64) {
	r.of.add(done-r.done, total-r.total)
	r.done, r.total = done, total
}

// note sets why the download is slow, "" if it is not, and whether it only waits for others.
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

// tell reports a change of Slow or Waits. An object is slow if all of its downloads are.
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

func (m *meter) isSlow() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sum.Slow != ""
}
