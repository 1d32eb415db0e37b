package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/margolite/margolite/runtime/tree"
)

// lockPatience is how long Start waits for another process to release the root.
const lockPatience = time.Second

// openMetadata is containerd's metadata plugin, but does not wait for the database lock for ever.
func openMetadata(ic *plugin.InitContext, o Options) (any, error) {
	root := ic.Properties[plugins.PropertyRootDir]
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	blobs, err := ic.GetSingle(plugins.ContentPlugin)
	if err != nil {
		return nil, err
	}
	exchange, err := ic.GetSingle(plugins.EventPlugin)
	if err != nil {
		return nil, err
	}
	byName, err := ic.GetByType(plugins.SnapshotPlugin)
	if err != nil {
		return nil, err
	}
	snapshotters := make(map[string]snapshots.Snapshotter, len(byName))
	for name, s := range byName {
		snapshotters[name] = s.(snapshots.Snapshotter)
	}

	file, err := openBolt(filepath.Join(root, "meta.db"))
	if err != nil {
		return nil, err
	}
	downloads := databases{o}.content()
	if err := errors.Join(dropChecks(downloads), dropTorn(ic.Context, blobs.(content.Store), downloads)); err != nil {
		o.Logger.Warn("leftovers still take space", "error", err)
	}
	db := metadata.NewDB(file, blobs.(content.Store), snapshotters,
		metadata.WithEventsPublisher(exchange.(events.Publisher)))
	if err = db.Init(ic.Context); err == nil {
		err = recoverContent(ic.Context, db, blobs.(content.Store), o.Namespace)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return db, nil
}

// openBolt opens the database as containerd does. bbolt panics on some damaged files.
func openBolt(path string) (db *bolt.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("cannot read %s: %v", path, p)
		}
	}()
	o := *bolt.DefaultOptions
	o.NoFreelistSync = true // one page less per commit
	o.NoStatistics = true
	o.Timeout = lockPatience
	db, err = bolt.Open(path, 0o600, &o)
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("cannot open %s: %w", path, ErrLocked)
	}
	return db, err
}

// openOverlay is containerd's overlayfs plugin without the test for idmapped mounts, which forks.
func openOverlay(ic *plugin.InitContext) (any, error) {
	root := ic.Properties[plugins.PropertyRootDir]
	ic.Meta.Platforms = append(ic.Meta.Platforms, platforms.DefaultSpec())
	ic.Meta.Exports[plugins.SnapshotterRootDir] = root
	ic.Meta.Capabilities = append(ic.Meta.Capabilities, snapshots.RebaseCap)
	records, err := storage.NewMetaStore(filepath.Join(root, "metadata.db"))
	if err != nil {
		return nil, err
	}
	s, err := overlay.NewSnapshotter(root, overlay.AsynchronousRemove, overlay.WithMetaStore(records))
	if err != nil {
		return nil, errors.Join(err, records.Close())
	}
	return &overlaySnapshotter{s, root, records}, nil
}

// overlaySnapshotter removes the files of snapshots itself: they may be nested deeper than
// containerd has descriptors.
type overlaySnapshotter struct {
	snapshots.Snapshotter
	root    string
	records *storage.MetaStore
}

// Cleanup removes directories without a record, after each collection. Remove leaves files to it.
func (s *overlaySnapshotter) Cleanup(ctx context.Context) error {
	unknown, err := s.unknown(ctx)
	if err != nil {
		return fmt.Errorf("cannot find the files of removed snapshots: %w", err)
	}
	var errs []error
	for _, dir := range unknown {
		errs = append(errs, tree.Remove(ctx, dir))
	}
	return errors.Join(errs...)
}

func (s *overlaySnapshotter) unknown(ctx context.Context) (dirs []string, err error) {
	// No writer may run: a new snapshot has a directory before it has a record.
	err = s.records.WithTransaction(ctx, true, func(ctx context.Context) error {
		known, err := storage.IDMap(ctx)
		if err != nil {
			return err
		}
		found, err := readDir(filepath.Join(s.root, "snapshots"))
		for _, f := range found {
			if _, ok := known[f.Name()]; !ok {
				dirs = append(dirs, filepath.Join(s.root, "snapshots", f.Name()))
			}
		}
		return err
	})
	return dirs, err
}
