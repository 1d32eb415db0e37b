package store_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/margolite/margolite/store"
)

// BenchmarkCommit measures a typical transition: the phase of one deployment
// and one report. Next to the time it says how many bytes the process wrote.
func BenchmarkCommit(b *testing.B) {
	f := newFixture(b)
	for i := range 10 {
		f.commit(store.Change{Deployments: []store.Deployment{fullDeployment(fmt.Sprint(i))}})
	}
	before := written(b)
	n := uint64(0)
	for b.Loop() {
		n++
		d := fullDeployment("5")
		d.Adopted = n
		f.commit(store.Change{Deployments: []store.Deployment{d}, Reports: []store.Report{{Deployment: "5", Body: make([]byte, 400)}}})
	}
	b.ReportMetric(float64(written(b)-before)/float64(b.N), "B-written/op")
}

// BenchmarkCommitOfNothingNew measures what a change costs that is stored already.
func BenchmarkCommitOfNothingNew(b *testing.B) {
	f := newFixture(b)
	change := store.Change{Manifest: &store.Manifest{Version: 1}, Deployments: []store.Deployment{fullDeployment("5")}}
	f.commit(change)
	before := written(b)
	for b.Loop() {
		f.commit(change)
	}
	b.ReportMetric(float64(written(b)-before)/float64(b.N), "B-written/op")
}

// written is how many bytes this process has written so far, 0 where the kernel
// does not say.
func written(b *testing.B) (n int64) {
	data, err := os.ReadFile("/proc/self/io")
	if err != nil {
		b.Skip("the kernel does not count what is written")
	}
	var read int64
	if _, err := fmt.Sscanf(string(data), "rchar: %d\nwchar: %d", &read, &n); err != nil {
		b.Fatal(err)
	}
	return n
}
