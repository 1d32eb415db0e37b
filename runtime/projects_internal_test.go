package runtime

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Whatever happens to a project while changes and workers take turns is seen by a worker
// afterwards, and no two of them have the project at the same time.
func TestNoNewsOfAProjectIsLost(t *testing.T) {
	const name, rounds, tellers, changers = "shop", 500, 2, 2
	ps := newProjects(events{})
	var inside, told, seen atomic.Int64
	alone := func() {
		if inside.Add(1) > 1 {
			t.Error("two have the project at the same time")
		}
		runtime.Gosched()
		inside.Add(-1)
	}

	var workers sync.WaitGroup
	work := func(p *project) {
		for ps.next(t.Context(), p) {
			_, done, ok := ps.tend(t.Context(), p)
			if !ok {
				continue
			}
			now := told.Load()
			alone()
			seen.Store(now)
			var due time.Time
			if rand.N(3) == 0 {
				due = time.Now().Add(rand.N(time.Millisecond))
			}
			done(due)
		}
	}
	ps.supervise(func(p *project) { workers.Go(func() { work(p) }) })

	for range rounds {
		var others sync.WaitGroup
		for range tellers {
			others.Go(func() {
				told.Add(1)
				ps.tell(name)
			})
		}
		for range changers {
			others.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(time.Millisecond))
				defer cancel()
				if letGo, err := ps.take(ctx, name); err == nil {
					alone()
					letGo(nil)
				}
			})
		}
		others.Wait()
		workers.Wait() // each ends when there is nothing to see to
		if seen.Load() != told.Load() {
			t.Fatalf("the last look was after %d of %d events", seen.Load(), told.Load())
		}
	}
}
