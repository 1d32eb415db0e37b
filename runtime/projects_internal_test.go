package runtime

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/margolite/margolite/test/expect"
)

// Whatever happens to a project while changes and workers take turns is seen by a worker
// afterwards, and no two of them have the project at the same time.
func TestNoNewsOfAProjectIsLost(t *testing.T) {
	const name, rounds, tellers, changers = "shop", 500, 2, 2
	ps := newProjects(events{})
	var inside, told, seen atomic.Int64
	alone := func() {
		expect.True(t, inside.Add(1) <= 1, "two have the project at the same time")
		runtime.Gosched()
		inside.Add(-1)
	}

	var workers sync.WaitGroup
	defer workers.Wait()
	look := func(context.Context) (due time.Time) {
		now := told.Load()
		alone()
		seen.Store(now)
		if rand.N(3) == 0 {
			due = time.Now().Add(rand.N(time.Millisecond))
		}
		return due
	}
	ps.supervise(func(p *project) { workers.Go(func() { ps.tend(t.Context(), p, look) }) })
	defer ps.supervise(nil)

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
		ps.mu.Lock()
		p := ps.get(name)
		_ = ps.await(t.Context(), p, func() bool { return !p.worker && !p.news }) // no worker has anything to see to
		ps.mu.Unlock()
		if seen.Load() != told.Load() {
			t.Fatalf("the last look was after %d of %d events", seen.Load(), told.Load())
		}
	}
}
