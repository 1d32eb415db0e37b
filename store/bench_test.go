package store_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

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

// BenchmarkAppend measures one entry of the journal that has a transaction of its
// own, and what it adds to a transition: while the journal grows, and while the
// oldest entries go.
func BenchmarkAppend(b *testing.B) {
	entry := store.Entry{
		Time: time.Now(), Kind: "change.done", Deployment: "5", Revision: digest.FromString("r"), Version: 1,
		Text: "a sentence about what happened, as long as they are",
	}
	for _, full := range []bool{false, true} {
		for _, alone := range []bool{true, false} {
			b.Run(fmt.Sprintf("full=%t/alone=%t", full, alone), func(b *testing.B) {
				f := newFixture(b)
				if full {
					f.commit(store.Change{Journal: slices.Repeat([]store.Entry{entry}, 4096)})
				}
				before := written(b)
				n := uint64(0)
				for b.Loop() {
					n++
					c := store.Change{Journal: []store.Entry{entry}}
					if !alone {
						d := fullDeployment("5")
						d.Adopted = n
						c.Deployments, c.Reports = []store.Deployment{d}, []store.Report{{Deployment: "5", Body: make([]byte, 400)}}
					}
					f.commit(c)
				}
				b.ReportMetric(float64(written(b)-before)/float64(b.N), "B-written/op")
			})
		}
	}
}

// BenchmarkVerifyJournal reads a full journal.
func BenchmarkVerifyJournal(b *testing.B) {
	f := newFixture(b)
	f.commit(store.Change{Journal: slices.Repeat([]store.Entry{{Time: time.Now(), Kind: "k", Text: "some text"}}, 4096)})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.VerifyJournal(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen measures a start, for which all records are read: with the records
// of a small device, and of one with a thousand deployments and a full journal.
func BenchmarkOpen(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := newFixture(b)
			for i := range n {
				d, data := artifact(fmt.Sprintf("%d %50000d", i, i))
				c := store.Change{
					Deployments: []store.Deployment{fullDeployment(fmt.Sprint(i))}, Artifacts: map[digest.Digest][]byte{d: data},
					Reports: []store.Report{report(fmt.Sprint(i), fmt.Sprintf("%400d", i), 1, store.Step)},
				}
				for k := range 4 {
					c.Journal = append(c.Journal, note(k))
				}
				f.commit(c)
			}
			for b.Loop() {
				f.reopen()
			}
		})
	}
}
