package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
)

// orphans looks for what lies in the root and no record knows: a kill between the two halves of a collection, the
// records and the files, leaves the files of an image. containerd looks at the files only where it deleted something
// since it started.
type orphans struct {
	db          *metadata.DB
	root        string // of containerd
	snapshotter string
}

// markIfAny has the next collection remove orphans, if there are any. Looking writes nothing.
func (o orphans) markIfAny(ctx context.Context) error {
	var all []string
	if err := o.db.View(func(tx *bolt.Tx) (err error) {
		all, err = metadata.NewNamespaceStore(tx).List(ctx)
		return err
	}); err != nil {
		return fmt.Errorf("cannot list namespaces: %w", err)
	}
	if len(all) == 0 {
		return nil
	}
	blobs, ingests, layers := make(map[string]bool), 0, 0
	for _, name := range all {
		ctx := namespaces.WithNamespace(ctx, name)
		if err := o.db.ContentStore().Walk(ctx, func(info content.Info) error {
			blobs[info.Digest.Encoded()] = true
			return nil
		}); err != nil {
			return fmt.Errorf("cannot list content: %w", err)
		}
		unfinished, err := o.db.ContentStore().ListStatuses(ctx)
		if err != nil {
			return fmt.Errorf("cannot list unfinished content: %w", err)
		}
		ingests += len(unfinished)
		if err := o.db.Snapshotter(o.snapshotter).Walk(ctx, func(context.Context, snapshots.Info) error {
			layers++
			return nil
		}); err != nil {
			return fmt.Errorf("cannot list snapshots: %w", err)
		}
	}
	ctx = namespaces.WithNamespace(ctx, all[0])
	return errors.Join(o.markContent(ctx, blobs, ingests), o.markSnapshots(ctx, layers))
}

// markContent is told of the blobs that are known, and of how many unfinished ones.
func (o orphans) markContent(ctx context.Context, known map[string]bool, ingests int) error {
	dir := filepath.Join(o.root, string(plugins.ContentPlugin)+".content")
	files, err := readDir(filepath.Join(dir, "blobs", string(digest.Canonical)))
	if err != nil {
		return fmt.Errorf("cannot list content: %w", err)
	}
	unfinished, err := readDir(filepath.Join(dir, "ingest"))
	if err != nil {
		return fmt.Errorf("cannot list unfinished content: %w", err)
	}
	if len(unfinished) <= ingests && !slices.ContainsFunc(files, func(f os.DirEntry) bool { return !known[f.Name()] }) {
		return nil
	}
	// Deleting anything has all of it looked at.
	text := []byte("orphans " + strconv.FormatInt(time.Now().UnixNano(), 36))
	some := v1.Descriptor{Digest: digest.FromBytes(text), Size: int64(len(text))}
	store := o.db.ContentStore()
	if err := content.WriteBlob(ctx, store, "orphans", bytes.NewReader(text), some); err != nil {
		return fmt.Errorf("cannot mark content: %w", err)
	}
	return store.Delete(ctx, some.Digest)
}

// readDir lists nothing where there is no such directory yet.
func readDir(path string) ([]os.DirEntry, error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return entries, err
}

func (o orphans) markSnapshots(ctx context.Context, known int) error {
	dirs, err := readDir(filepath.Join(o.root, string(plugins.SnapshotPlugin)+"."+o.snapshotter, "snapshots"))
	if err != nil {
		return fmt.Errorf("cannot list snapshots: %w", err)
	}
	if len(dirs) <= known {
		return nil
	}
	key := "orphans " + strconv.FormatInt(time.Now().UnixNano(), 36)
	store := o.db.Snapshotter(o.snapshotter)
	if _, err := store.Prepare(ctx, key, ""); err != nil {
		return fmt.Errorf("cannot mark snapshots: %w", err)
	}
	return store.Remove(ctx, key)
}
