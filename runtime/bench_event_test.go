package runtime_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime"
)

// fleets are the sizes of devices that are measured.
var fleets = []struct{ containers, projects int }{{1, 1}, {10, 2}, {100, 16}, {300, 50}}

// fleet runs as many containers as it says in as many projects.
func (r *rig) fleet(e *runtime.Engine, containers, projects int) []string {
	r.Helper()
	var names []string
	for n := range projects {
		name := fmt.Sprintf("p%03d", n)
		var file strings.Builder
		file.WriteString("services:\n")
		for s := range containers/projects + min(1, max(0, containers%projects-n)) {
			fmt.Fprintf(&file, "  s%d: {image: BUSYBOX, restart: always, environment: {N: %d}}\n", s, n)
		}
		r.apply(e, r.load(e, name, file.String()))
		names = append(names, name)
	}
	return names
}

func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkEvent is what it costs that one container ends and is brought back, on
// devices with more and more of them. Its time is mostly the wait for an end of
// the work; the processor time, of the runtime and containerd together, is not.
func BenchmarkEvent(b *testing.B) {
	for _, f := range fleets {
		b.Run(fmt.Sprint(f.containers), func(b *testing.B) {
			r := newRig(b, embeddedBackend())
			c := r.count()
			e := r.engine()
			r.supervise(e)
			names := r.fleet(e, f.containers, f.projects)
			r.settled(c)
			sum, spent := counts{}, time.Duration(0)
			for n := 0; b.Loop(); n++ {
				name := names[n%len(names)]
				pid := r.containers(e, name)["s0"].Pid
				before := r.settled(c)
				used := processorTime(b)
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					b.Fatal(err)
				}
				r.eventually("it is brought back", func() bool { return c.count().since(before).tasks > 0 })
				time.Sleep(time.Second)
				did := r.settled(c).since(before)
				spent += processorTime(b) - used
				sum = counts{sum.lists + did.lists, sum.records + did.records, sum.tasks + did.tasks}
				r.eventually("it runs again", func() bool { return r.containers(e, name)["s0"].State == runtime.Running })
			}
			each := func(n int64) float64 { return float64(n) / float64(b.N) }
			b.ReportMetric(each(sum.lists), "lists/op")
			b.ReportMetric(each(sum.records), "records/op")
			b.ReportMetric(each(sum.tasks), "tasks/op")
			b.ReportMetric(each(int64(spent))/1e6, "cpu-ms/op")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkObserve is what it costs to see what runs, as for a status.
func BenchmarkObserve(b *testing.B) {
	for _, f := range fleets {
		b.Run(fmt.Sprint(f.containers), func(b *testing.B) {
			r := newRig(b, embeddedBackend())
			e := r.engine()
			r.fleet(e, f.containers, f.projects)
			used := processorTime(b)
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				if _, err := e.Observe(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(processorTime(b)-used)/float64(b.N)/1e6, "cpu-ms/op")
		})
	}
}

// BenchmarkStart is what a new supervisor does until everything was looked at, as
// after a restart of the agent.
func BenchmarkStart(b *testing.B) {
	for _, f := range fleets {
		b.Run(fmt.Sprint(f.containers), func(b *testing.B) {
			r := newRig(b, embeddedBackend())
			c := r.count()
			r.fleet(r.engine(), f.containers, f.projects)
			sum, spent := counts{}, time.Duration(0)
			for b.Loop() {
				e := r.engine()
				before, used := c.count(), processorTime(b)
				stop := r.supervise(e)
				<-e.Back()
				did := r.settled(c).since(before)
				spent += processorTime(b) - used
				stop()
				sum = counts{sum.lists + did.lists, sum.records + did.records, sum.tasks + did.tasks}
			}
			each := func(n int64) float64 { return float64(n) / float64(b.N) }
			b.ReportMetric(each(sum.lists), "lists/op")
			b.ReportMetric(each(sum.records), "records/op")
			b.ReportMetric(each(int64(spent))/1e6, "cpu-ms/op")
		})
	}
}
