package store

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"

	"github.com/margolite/margolite/test/syscalls"
)

// BenchmarkTuning measures what the settings of the database are worth on a small
// medium: each transition of a deployment, noted in the journal and reported, and
// the acknowledgement of that report. Beside the time it tells what is written,
// what is waited for, how large the file is, and how long a start takes. Pages of
// another size write other bytes here, and no fewer ones to a medium: of 1 KiB a
// third, of which ext4 makes 10% more, and of 16 KiB three times as many.
func BenchmarkTuning(b *testing.B) {
	for _, variant := range []struct {
		name   string
		change func(o *bolt.Options, growth *int)
	}{
		{"as it is", func(*bolt.Options, *int) {}},
		{"free list written", func(o *bolt.Options, _ *int) { o.NoFreelistSync = false }},
		{"free list as a map", func(o *bolt.Options, _ *int) { o.FreelistType = bolt.FreelistMapType }},
		{"grows by 16 MiB", func(_ *bolt.Options, growth *int) { *growth = 16 << 20 }},
	} {
		b.Run(strings.ReplaceAll(variant.name, " ", "_"), func(b *testing.B) {
			o, step := bolt.Options{NoFreelistSync: true, FreelistType: bolt.FreelistArrayType, NoStatistics: true}, growth
			variant.change(&o, &step)
			benchmarkTuning(b, o, step)
		})
	}
}

func benchmarkTuning(b *testing.B, o bolt.Options, step int) {
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	path := filepath.Join(b.TempDir(), "margolite.db")
	s, err := Open(path, Options{})
	check(err)
	check(s.db.Close())
	s.db, err = bolt.Open(path, 0o600, &o)
	check(err)
	s.db.AllocSize = step
	deployment := func(i int, n uint64) Deployment {
		return Deployment{ID: fmt.Sprintf("ad9b614e-8912-45f4-a523-%012d", i), Phase: "active", Adopted: n, Desired: Revision{
			Digest: digest.FromString("d"), Staged: []Staged{{Component: "main", Project: "project", Package: digest.FromString("p"), Images: map[string]digest.Digest{
				"registry.example/one": digest.FromString("1"), "registry.example/two": digest.FromString("2"),
			}}},
		}}
	}
	for i := range 20 {
		data := []byte(strings.Repeat(fmt.Sprint(i, " "), 1000*(i+1)))
		check(s.Commit("fill", Change{Deployments: []Deployment{deployment(i, 0)}, Artifacts: map[digest.Digest][]byte{digest.FromBytes(data): data}}))
	}
	counter, err := syscalls.OfThread(syscalls.Syncs()...)
	if err != nil {
		b.Skip(err)
	}
	defer counter.Close()
	syncs := func() (n int64) {
		counts, err := counter.Count()
		check(err)
		for _, c := range counts {
			n += c
		}
		return n
	}
	waited, wrote, n := syncs(), wchar(b), uint64(0)
	for b.Loop() {
		n++
		check(s.Commit("go", Change{
			Deployments: []Deployment{deployment(7, n)},
			Reports:     []Report{{Deployment: "7", Body: make([]byte, 400)}},
			Journal:     []Entry{{Time: time.Now(), Kind: "change.done", Deployment: "7", Version: n, Text: "a sentence about what happened"}},
		}))
		check(s.AckReports(n))
	}
	b.ReportMetric(float64(wchar(b)-wrote)/float64(n), "B-written/op")
	b.ReportMetric(float64(syncs()-waited)/float64(n), "syncs/op")
	check(s.Close())
	info, err := os.Stat(path)
	check(err)
	b.ReportMetric(float64(info.Size()>>10), "KiB-file")
	begun := time.Now()
	db, err := bolt.Open(path, 0o600, &o)
	check(err)
	b.ReportMetric(float64(time.Since(begun).Microseconds()), "µs-start")
	check(db.Close())
}

// wchar is how many bytes this thread has written so far.
func wchar(b *testing.B) (n int64) {
	text, err := os.ReadFile("/proc/thread-self/io")
	if err != nil {
		b.Skip("the kernel does not count what is written")
	}
	for line := range strings.Lines(string(text)) {
		_, _ = fmt.Sscanf(line, "wchar: %d", &n)
	}
	return n
}
