package embedded

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/gc"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/plugin"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
)

// collectAfter is how long the collector waits for further deletions.
const collectAfter = time.Second

// collector collects after deletions and at start, without the Prometheus metrics of containerd's.
type collector struct {
	db          *metadata.DB
	root        string // of containerd
	snapshotter string
	log         *slog.Logger
	due         chan struct{} // something was deleted; size 1
	behind      *atomic.Bool  // deleted are only records so far, not the files
}

func (s *Server) startCollector(ic *plugin.InitContext, root string, log *slog.Logger) (*collector, error) {
	db, err := database(ic)
	if err != nil {
		return nil, err
	}
	c := &collector{db: db, root: root, snapshotter: s.snapshotter, log: log, due: make(chan struct{}, 1), behind: &s.behind}
	c.poke()
	db.RegisterMutationCallback(func(deleted bool) {
		if deleted {
			c.poke()
		}
	})
	var missed error
	if s.sweep { // before anybody else could see what that makes for a moment
		if missed = c.lookAtFiles(ic.Context); missed != nil {
			log.Warn("cannot find orphaned files of containerd", "error", missed)
		}
	}
	s.running.Go(func() { c.run(ic.Context, missed != nil) })
	return c, nil
}

func (c *collector) poke() {
	c.behind.Store(true)
	select {
	case c.due <- struct{}{}:
	default:
	}
}

// run collects until ctx is done. missed: files have not been looked at yet.
func (c *collector) run(ctx context.Context, missed bool) {
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
		c.behind.Store(false)
		select {
		case <-c.due: // came while waiting, and is about to be served
		default:
		}
		_, err := c.ScheduleAndWait(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("cannot collect garbage in containerd", "error", err)
		}
		if missed || err != nil || ctx.Err() != nil {
			c.behind.Store(true)
		}
		takeRoom(c.root) // they may have grown, and now there may be space
	}
}

// lookAtFiles has the next collection look for files without a record, which a kill during a
// collection leaves: containerd only looks at files if something was deleted since it started.
func (c *collector) lookAtFiles(ctx context.Context) error {
	var all []string
	err := c.db.View(func(tx *bolt.Tx) (err error) {
		all, err = metadata.NewNamespaceStore(tx).List(ctx)
		return err
	})
	if err != nil || len(all) == 0 {
		return err
	}
	ctx = namespaces.WithNamespace(ctx, all[0])
	const key = "look at files"
	blobs, layers := c.db.ContentStore(), c.db.Snapshotter(c.snapshotter)
	some := v1.Descriptor{Digest: digest.FromString(key), Size: int64(len(key))}
	// containerd would keep what a killed start left unfinished here for a day.
	if err := blobs.Abort(ctx, key); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if err := content.WriteBlob(ctx, blobs, key, strings.NewReader(key), some); err != nil {
		return err
	}
	if _, err := layers.Prepare(ctx, key, ""); err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return errors.Join(blobs.Delete(ctx, some.Digest), layers.Remove(ctx, key))
}

// ScheduleAndWait collects at once, for synchronous deletions of leases and images.
func (c *collector) ScheduleAndWait(ctx context.Context) (gc.Stats, error) {
	return c.db.GarbageCollect(ctx)
}
