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
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/plugins/content/local"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/tree"
)

// bad is what is added to the name of a database of containerd that is set aside.
const bad = ".bad"

// lostPrefix begins the names of directories with snapshots that no database knows any more. Containers may run on them
// still.
const lostPrefix = "lost-"

// databases are the files in which containerd keeps what it knows, before it opens them.
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

// snapshotters are the names of those that there may be databases of.
func snapshotters() []string { return []string{defaults.DefaultSnapshotter, nativeSnapshotter} }

// closed is there after an end in order.
func (d databases) closed() string { return filepath.Join(d.Root, "closed") }

// repair replaces all databases if one of them is lost, or lost what another one relies on. Those that were closed in order
// only have to be there. It says whether they were; from here on a power cut is no end in order.
func (d databases) repair(ctx context.Context) (closed bool, err error) {
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
			return false, d.replace(ctx, db.path)
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
			return false, d.replace(ctx, "")
		}
	}
	return false, nil
}

func (d databases) logLoss(path, found string) {
	d.Logger.Error("a database of containerd is lost; images are unpacked again and containers recreated",
		"security", true, "file", path, "found", found)
}

// inspect says why a database is lost; "" if it is not.
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

// lostSnapshot is one that the metadata knows and its snapshotter doesn't; "" if there is none. A snapshotter knows each
// of them for longer than the metadata, unless its database lost transactions.
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

// view reads what a database of containerd has in its top bucket, if there is one.
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

// replace replaces all databases. The new metadata knows the content that is on the device; whoever wants it unpacks
// images and creates containers again. A damaged file is kept beside its place. While the metadata is missing, a start
// after a power cut comes here again.
func (d databases) replace(ctx context.Context, damaged string) error {
	kept := ""
	if info, err := os.Stat(damaged); err == nil && info.Size() > 0 {
		kept = damaged + bad
		if err := os.Rename(damaged, kept); err != nil {
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
	fresh := metadata + ".new"
	err := d.fill(ctx, fresh)
	if err != nil && isFull(err) && kept != "" { // to keep what is damaged is not worth a failed start
		if err = remove(kept); err == nil {
			err = d.fill(ctx, fresh)
		}
	}
	if err == nil {
		err = os.Rename(fresh, metadata)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot create database of containerd: %w", err), remove(fresh))
	}
	return tree.Sync(filepath.Dir(metadata))
}

// fill makes a database at path that knows the content of the device, which a lease holds until somebody has said what is
// still wanted.
func (d databases) fill(ctx context.Context, path string) error {
	if err := remove(path); err != nil {
		return err
	}
	file, err := openBolt(path)
	if err != nil {
		return err
	}
	file.NoSync = true // it gets its name when it is on the medium
	err = d.register(ctx, file)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func (d databases) register(ctx context.Context, file *bolt.DB) error {
	blobs, err := local.NewStore(d.content())
	if err != nil {
		return err
	}
	db := metadata.NewDB(file, blobs, nil)
	if err := db.Init(ctx); err != nil || d.Namespace == "" {
		return err
	}
	ctx = namespaces.WithNamespace(ctx, d.Namespace)
	return db.Update(func(tx *bolt.Tx) error {
		ctx := boltutil.WithTransaction(ctx, tx)
		if err := metadata.NewNamespaceStore(tx).Create(ctx, d.Namespace, nil); err != nil {
			return err
		}
		if _, err := metadata.NewLeaseManager(db).Create(ctx, leases.WithID(containerd.RecoveredLease)); err != nil {
			return err
		}
		ctx = leases.WithLease(ctx, containerd.RecoveredLease)
		return blobs.Walk(ctx, func(blob content.Info) error {
			// What the store has already, it takes as it is: by its digest and its size.
			w, err := db.ContentStore().Writer(ctx, content.WithRef("recover "+blob.Digest.String()),
				content.WithDescriptor(v1.Descriptor{Digest: blob.Digest, Size: blob.Size}))
			if err != nil {
				return err
			}
			return errors.Join(w.Commit(ctx, blob.Size, blob.Digest), w.Close())
		})
	})
}

// moveSnapshots takes snapshots out of the way of new ones, which get the same numbers. What runs on them, runs on.
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

// removeLost removes the snapshots that were moved away, on which nothing runs any more.
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

// checkDamage tells of databases that were damaged, until somebody removes them.
func checkDamage(root string) *Problem {
	found, _ := filepath.Glob(filepath.Join(root, "*", "*.db"+bad)) // the pattern is well-formed
	if len(found) == 0 {
		return nil
	}
	return &Problem{
		Object: "root",
		Text:   "a damaged database of containerd was replaced and containers were recreated: " + strings.Join(found, ", "),
		Mend:   "check the storage medium of the state directory, and remove the saved files",
	}
}
