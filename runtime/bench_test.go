package runtime_test

import (
	"fmt"
	"testing"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/compose"
)

// BenchmarkReconcileNothing is what it costs to find that nothing is to be done.
func BenchmarkReconcileNothing(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newRig(b, embeddedBackend())
			e := r.engine()
			p := r.change(e, "many", `services: {app: {image: BUSYBOX}}`, func(s map[string]*compose.Service) { s["app"].Replicas = n })
			if err := e.Apply(b.Context(), p, runtime.ApplyOptions{}); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for b.Loop() {
				if matches, err := e.Matches(b.Context(), p); err != nil || !matches {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkApplyNothing is what it costs to apply a project again, which also
// mends the network.
func BenchmarkApplyNothing(b *testing.B) {
	for _, n := range []int{1, 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newRig(b, embeddedBackend())
			e := r.engine()
			p := r.change(e, "many", `services: {app: {image: BUSYBOX}}`, func(s map[string]*compose.Service) { s["app"].Replicas = n })
			r.apply(e, p)
			for b.Loop() {
				r.apply(e, p)
			}
		})
	}
}

// BenchmarkRemove is what it costs to remove a project.
func BenchmarkRemove(b *testing.B) {
	for _, n := range []int{1, 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newRig(b, embeddedBackend())
			e := r.engine()
			p := r.change(e, "many", `services: {app: {image: BUSYBOX}}`, func(s map[string]*compose.Service) { s["app"].Replicas = n })
			for b.Loop() {
				b.StopTimer()
				r.apply(e, p)
				b.StartTimer()
				if err := e.Remove(b.Context(), "many"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkUpAgain is what it costs to bring up 100 unchanged containers again, from
// the Compose file on, with a supervisor beside it.
func BenchmarkUpAgain(b *testing.B) {
	for _, n := range []int{10, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newRig(b, embeddedBackend())
			e := r.engine()
			r.supervise(e)
			const inProject = 50
			var names []string
			up := func() {
				for i, name := range names {
					r.apply(e, r.change(e, name, `services: {app: {image: BUSYBOX}}`, func(s map[string]*compose.Service) { s["app"].Replicas = min(inProject, n-i*inProject) }))
				}
			}
			for i := range (n + inProject - 1) / inProject {
				names = append(names, fmt.Sprint("crowd", i))
			}
			up()
			up()
			used := processorTime(b)
			for b.Loop() {
				up()
			}
			b.ReportMetric(float64(processorTime(b)-used)/float64(b.N)/1e6, "cpu-ms/op")
		})
	}
}
