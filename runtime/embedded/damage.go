package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/tree"
)

const (
	// bad is the suffix of a containerd database that was set aside.
	bad = ".bad"
	// leastFree is how many bytes new databases need.
	leastFree = 4 << 20
)

// lostPrefix begins directories of a lost database's snapshots, on which containers may still run.
const lostPrefix = "lost-"

// databases are containerd's database files, before containerd opens them.
type databases struct{ Options }

type databaseFile struct {
	path  string
	files []string // patterns of the files that nothing else explains
}

func (d databases) metadata() databaseFile {
	return databaseFile{
		path:  filepath.Join(d.Root, string(plugins.MetadataPlugin)+".bolt", "meta.db"),
		files: []string{filepath.Join(d.content(), "blobs", "*", "*"), filepath.Join(d.snapshotter("*"), "snapshots", "*")},
	}
}

func (d databases) content() string {
	return filepath.Join(d.Root, string(plugins.ContentPlugin)+".content")
}

func (d databases) snapshotter(name string) string {
	return filepath.Join(d.Root, string(plugins.SnapshotPlugin)+"."+name)
}

func (d databases) snapshots(name string) databaseFile {
	dir := d.snapshotter(name)
	return databaseFile{path: filepath.Join(dir, "metadata.db"), files: []string{filepath.Join(dir, "snapshots", "*")}}
}

func snapshotters() []string { return []string{defaults.DefaultSnapshotter, nativeSnapshotter} }

// closed is a file that exists after a clean shutdown.
func (d databases) closed() string { return filepath.Join(d.Root, "closed") }

// repair sets all databases aside if one is lost, or has lost what another relies on. After a clean
// shutdown, which it reports, they only have to exist. From here on a power cut is not clean.
func (d databases) repair() (closed bool, err error) {
	if closed = exists(d.closed()); closed {
		if err := errors.Join(remove(d.closed()), tree.Sync(d.Root)); err != nil {
			return false, err
		}
	}
	if d.Check == nil {
		return closed, nil
	}
	all := []databaseFile{d.metadata()}
	for _, name := range snapshotters() {
		all = append(all, d.snapshots(name))
	}
	for _, db := range all {
		damage, err := d.inspect(db, closed)
		if err != nil {
			return false, fmt.Errorf("cannot check %s: %w", db.path, err)
		}
		if damage != "" {
			d.logLoss(db.path, damage)
			return false, d.setAside(db.path)
		}
	}
	if closed {
		return true, nil
	}
	for _, name := range snapshotters() {
		lost, err := d.lostSnapshot(name)
		if err != nil {
			return false, fmt.Errorf("cannot compare databases of containerd: %w", err)
		}
		if lost != "" {
			d.logLoss(d.snapshots(name).path, "snapshot "+lost+" is gone")
			return false, d.setAside("")
		}
	}
	return false, nil
}

func (d databases) logLoss(path, found string) {
	d.Logger.Error("a database of containerd is lost; images are unpacked again and containers recreated",
		"security", true, "file", path, "found", found)
}

// inspect says why a database is lost, or "".
func (d databases) inspect(db databaseFile, closed bool) (damage string, err error) {
	info, err := os.Stat(db.path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && info.Size() == 0: // created, and nothing written
		if db.hasFiles() {
			return "it is gone", nil
		}
		return "", nil
	case err != nil || closed:
		return "", err
	}
	if err = d.Check(db.path); errors.Is(err, ErrDamaged) {
		return err.Error(), nil
	}
	return "", err
}

func (db databaseFile) hasFiles() bool {
	return slices.ContainsFunc(db.files, func(pattern string) bool {
		found, _ := filepath.Glob(pattern) // the pattern is well-formed
		return len(found) > 0
	})
}

// lostSnapshot is known to the metadata and not to its snapshotter, or "". A snapshotter keeps it
// longer than the metadata, unless its database lost transactions.
func (d databases) lostSnapshot(name string) (lost string, err error) {
	known := make(map[string]bool)
	err = view(d.snapshots(name).path, func(top *bolt.Bucket) error {
		return eachBucket(top.Bucket([]byte("snapshots")), func(key []byte, _ *bolt.Bucket) error {
			known[string(key)] = true
			return nil
		})
	})
	if err != nil {
		return "", err
	}
	err = view(d.metadata().path, func(top *bolt.Bucket) error {
		return eachBucket(top, func(_ []byte, namespace *bolt.Bucket) error {
			all := namespace.Bucket([]byte("snapshots"))
			if all != nil {
				all = all.Bucket([]byte(name))
			}
			return eachBucket(all, func(key []byte, snapshot *bolt.Bucket) error {
				if !known[string(snapshot.Get([]byte("name")))] {
					lost = string(key)
				}
				return nil
			})
		})
	})
	return lost, err
}

// view reads the top bucket of a containerd database, if there is one.
func view(path string, read func(top *bolt.Bucket) error) error {
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		return nil // inspect has looked at it
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: lockPatience})
	if err != nil {
		return err
	}
	err = db.View(func(tx *bolt.Tx) error {
		if top := tx.Bucket([]byte("v1")); top != nil {
			return read(top)
		}
		return nil
	})
	return errors.Join(err, db.Close())
}

// eachBucket calls do for the buckets in a bucket, which may be nil.
func eachBucket(in *bolt.Bucket, do func(key []byte, b *bolt.Bucket) error) error {
	if in == nil {
		return nil
	}
	return in.ForEachBucket(func(key []byte) error { return do(key, in.Bucket(key)) })
}

// setAsideOrRemove keeps a damaged file beside its place, unless that leaves no room for a new one.
func setAsideOrRemove(damaged string) error {
	var medium unix.Statfs_t
	if err := unix.Statfs(damaged, &medium); err == nil && int64(medium.Bfree)*int64(medium.Bsize) < leastFree {
		return remove(damaged)
	}
	return os.Rename(damaged, damaged+bad)
}

// setAside removes all databases, so that containerd makes new ones; see recoverContent. Images are
// unpacked and containers created again. Until there is new metadata, each start comes here again.
func (d databases) setAside(damaged string) error {
	if info, err := os.Stat(damaged); err == nil && info.Size() > 0 {
		if err := setAsideOrRemove(damaged); err != nil {
			return fmt.Errorf("cannot set database of containerd aside: %w", err)
		}
	}
	metadata := d.metadata().path
	if err := errors.Join(os.MkdirAll(filepath.Dir(metadata), 0o700), remove(metadata), tree.Sync(filepath.Dir(metadata))); err != nil {
		return err
	}
	for _, name := range snapshotters() {
		if err := errors.Join(d.moveSnapshots(name), remove(d.snapshots(name).path)); err != nil {
			return err
		}
		if err := tree.Sync(d.snapshotter(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// recoverContent registers content of a lost database, held by a lease until its use is known.
func recoverContent(ctx context.Context, db *metadata.DB, blobs content.Store, namespace string) error {
	var known []string
	err := db.View(func(tx *bolt.Tx) (err error) {
		known, err = metadata.NewNamespaceStore(tx).List(ctx)
		return err
	})
	if err != nil || len(known) > 0 || namespace == "" {
		return err
	}
	ctx = namespaces.WithNamespace(ctx, namespace)
	var found []content.Info
	err = blobs.Walk(ctx, func(blob content.Info) error {
		found = append(found, blob)
		return nil
	})
	if len(found) == 0 && errors.Is(err, fs.ErrNotExist) {
		return nil // there has been none yet
	}
	if err != nil || len(found) == 0 {
		return err
	}
	return db.Update(func(tx *bolt.Tx) error {
		ctx := boltutil.WithTransaction(ctx, tx)
		if err := metadata.NewNamespaceStore(tx).Create(ctx, namespace, nil); err != nil {
			return err
		}
		if _, err := metadata.NewLeaseManager(db).Create(ctx, leases.WithID(containerd.RecoveredLease)); err != nil {
			return err
		}
		ctx = leases.WithLease(ctx, containerd.RecoveredLease)
		for _, blob := range found {
			// Content in the store is accepted by its digest and size.
			w, err := db.ContentStore().Writer(ctx, content.WithRef("recover "+blob.Digest.String()),
				content.WithDescriptor(v1.Descriptor{Digest: blob.Digest, Size: blob.Size}))
			if err == nil {
				err = errors.Join(w.Commit(ctx, blob.Size, blob.Digest), w.Close())
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// moveSnapshots makes way for new snapshots with the same numbers. Old ones stay in use.
func (d databases) moveSnapshots(name string) error {
	dir := d.snapshotter(name)
	err := os.Rename(filepath.Join(dir, "snapshots"), filepath.Join(dir, lostPrefix+strconv.FormatInt(time.Now().UnixNano(), 36)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot move lost snapshots: %w", err)
	}
	return nil
}

// removeLost removes moved snapshots that no container runs on any more.
func (d databases) removeLost(ctx context.Context) error {
	lost, err := filepath.Glob(filepath.Join(d.snapshotter("*"), lostPrefix+"*"))
	for _, dir := range lost {
		err = errors.Join(err, tree.Remove(ctx, dir))
	}
	if err != nil {
		return fmt.Errorf("cannot remove lost snapshots: %w", err)
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove database of containerd: %w", err)
	}
	return nil
}
