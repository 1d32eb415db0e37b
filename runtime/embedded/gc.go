package embedded

import (
	"context"
	"log/slog"
	"time"

	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/gc"
	"github.com/containerd/plugin"
)

// collectAfter is how long the collector waits for more deletions to come before it collects.
const collectAfter = time.Second

// collector runs the garbage collection of the metadata after deletions and once at start. It stands in for
// containerd's scheduler, which keeps Prometheus metrics.
type collector struct {
	db      *metadata.DB
	orphans orphans
	log     *slog.Logger
	due     chan struct{} // something was deleted; size 1
}

func (s *Server) startCollector(ic *plugin.InitContext, root string, log *slog.Logger) (*collector, error) {
	db, err := database(ic)
	if err != nil {
		return nil, err
	}
	c := &collector{db: db, orphans: orphans{db, root, s.snapshotter}, log: log, due: make(chan struct{}, 1)}
	c.poke()
	db.RegisterMutationCallback(func(deleted bool) {
		if deleted {
			c.poke()
		}
	})
	s.running.Go(func() { c.run(ic.Context) })
	return c, nil
}

func (c *collector) poke() {
	select {
	case c.due <- struct{}{}:
	default:
	}
}

func (c *collector) run(ctx context.Context) {
	if err := c.orphans.markIfAny(ctx); err != nil && ctx.Err() == nil {
		c.log.Warn("cannot find orphaned files of containerd", "error", err)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.due:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(collectAfter):
		}
		select {
		case <-c.due: // came while waiting, and is about to be served
		default:
		}
		if _, err := c.ScheduleAndWait(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("cannot collect garbage in containerd", "error", err)
		}
		takeRoom(c.orphans.root) // they may have grown, and now there may be space
	}
}

// ScheduleAndWait collects at once; synchronous deletions of leases and images call it.
func (c *collector) ScheduleAndWait(ctx context.Context) (gc.Stats, error) {
	return c.db.GarbageCollect(ctx)
}
