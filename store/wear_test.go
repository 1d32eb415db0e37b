package store_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/syscalls"
)

// wear is what calls cost a medium: writes to the database, how often somebody waits
// until it is there, and the bytes of all files.
type wear struct{ writes, syncs, bytes int64 }

// beside is what the kernel may count for this thread meanwhile that is not the
// store's: Go wakes threads by writing to them, and once in some hundred runs it is a
// whole page. A page more of the database is a write more, too.
const beside = 4<<10 + 512

// meter measures the wear of what the calling goroutine does.
type meter struct {
	t testing.TB
	c *syscalls.Counter
}

// newMeter skips where the kernel does not count.
func newMeter(t testing.TB) *meter {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	c, err := syscalls.OfThread(append(syscalls.Syncs(), "pwrite64")...)
	if err != nil {
		t.Skip("needs tracepoints of system calls:", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &meter{t, c}
}

func (m *meter) now() (w wear) {
	m.t.Helper()
	counts := expect.Value(m.c.Count())(m.t)
	syncs := len(syscalls.Syncs())
	for i, n := range counts {
		if i < syncs {
			w.syncs += n
		} else {
			w.writes += n
		}
	}
	text, err := os.ReadFile("/proc/thread-self/io")
	if err != nil {
		m.t.Skip("needs a kernel that counts written bytes:", err)
	}
	for line := range strings.Lines(string(text)) {
		_, _ = fmt.Sscanf(line, "wchar: %d", &w.bytes)
	}
	return w
}

// of is what one call costs.
func (m *meter) of(call func()) wear {
	m.t.Helper()
	before := m.now()
	call()
	after := m.now()
	return wear{after.writes - before.writes, after.syncs - before.syncs, after.bytes - before.bytes}
}

// What each change may cost, on a device with ten deployments. The numbers are
// those of the kernel, and the same on every machine.
func TestEveryChangeHasItsPrice(t *testing.T) {
	f := newFixture(t, "time")
	m := newMeter(t)
	entry := store.Entry{
		Time: time.Now(), Kind: "change.done", Deployment: "5", Revision: digest.FromString("r"), Version: 1,
		Text: "a sentence about what happened, as long as they are",
	}
	var all []store.Deployment
	for i := range 10 {
		all = append(all, fullDeployment(fmt.Sprint(i)))
	}
	f.commit(store.Change{
		Manifest: &store.Manifest{Version: 1}, Deployments: all, Journal: slices.Repeat([]store.Entry{entry}, 64),
		Settings: map[string][]byte{"time": []byte("1"), "capabilities": make([]byte, 200)},
	})
	n := uint64(1)
	moved := func() store.Change {
		n++
		d := fullDeployment("5")
		d.Adopted = n
		return store.Change{Deployments: []store.Deployment{d}, Reports: []store.Report{{Deployment: "5", Body: make([]byte, 400)}}}
	}
	noted := func() store.Change {
		c := moved()
		c.Journal = []store.Entry{entry}
		return c
	}

	for _, price := range []struct {
		of   string
		call func()
		most wear
	}{
		{"what is stored already", func() { f.commit(store.Change{Manifest: &store.Manifest{Version: 1}, Deployments: all}) }, wear{}},
		{"reading", func() {
			_, err := f.Deployments()
			if err == nil {
				_, err = f.Reports(0, 10)
			}
			expect.OK(t, err)
		}, wear{}},
		{"a small setting, as the time once a day", func() { f.commit(store.Change{Settings: map[string][]byte{"time": []byte("2")}}) }, wear{2, 2, 8 << 10}},
		{"what somebody said, as a lock", func() { f.commit(store.Change{Settings: map[string][]byte{"locks": []byte("1")}}) }, wear{2, 4, 9 << 10}},
		{"a phase of a deployment with its report", func() { f.commit(moved()) }, wear{5, 2, 20 << 10}},
		{"the same, noted in the journal", func() { f.commit(noted()) }, wear{7, 3, 24<<10 + 512}},
		{"the acknowledgement of reports", func() {
			expect.OK(t, f.AckReports(1, 2))
		}, wear{2, 2, 8 << 10}},
		{"acknowledged once more", func() {
			expect.OK(t, f.AckReports(1, 2))
		}, wear{}},
		{"a manifest", func() { f.commit(store.Change{Manifest: &store.Manifest{Version: 2, ETag: "e"}}) }, wear{3, 4, 8<<10 + 64}},
		{"a document of 4 KB", func() {
			data := make([]byte, 4<<10)
			f.commit(store.Change{Artifacts: map[digest.Digest][]byte{digest.FromBytes(data): data}})
		}, wear{4, 2, 20 << 10}},
	} {
		got := m.of(price.call)
		t.Logf("%-45s %2d writes, %d syncs, %6d bytes", price.of, got.writes, got.syncs, got.bytes)
		if got.writes > price.most.writes || got.syncs > price.most.syncs || got.bytes > price.most.bytes+beside {
			t.Errorf("%s costs %+v, may cost %+v", price.of, got, price.most)
		}
	}
}
