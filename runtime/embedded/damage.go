//go:build !slim

package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

func (d databases) metadata() string {
	return filepath.Join(d.Root, string(plugins.MetadataPlugin)+".bolt", "meta.db")
}

func (d databases) content() string {
	return filepath.Join(d.Root, string(plugins.ContentPlugin)+".content")
}

func (d databases) snapshotter(name string) string {
	return filepath.Join(d.Root, string(plugins.SnapshotPlugin)+"."+name)
}

// snapshotters are the names of those that there may be databases of.
func snapshotters() []string { return []string{defaults.DefaultSnapshotter, nativeSnapshotter} }

// mend makes databases that can be opened of those that cannot, or that are gone. Each step may be repeated, and the one
// that ends a damage comes last: a start after a power cut goes on.
func (d databases) mend(ctx context.Context) error {
	if d.Check == nil {
		return nil
	}
	missing, damage, err := d.look(d.metadata())
	if err != nil {
		return err
	}
	if damage != nil || missing && d.hasFiles() {
		return d.replaceMetadata(ctx, damage)
	}
	if missing {
		return nil
	}
	for _, name := range snapshotters() {
		missing, damage, err := d.look(filepath.Join(d.snapshotter(name), "metadata.db"))
		if err == nil && (missing || damage != nil) {
			err = d.setAside(name, damage)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// look says whether a database is there, and what damage it has that cannot be mended.
func (d databases) look(path string) (missing bool, damage, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && info.Size() == 0: // made, and not begun
		return true, nil, nil
	case err != nil:
		return false, nil, fmt.Errorf("cannot look at database of containerd: %w", err)
	}
	mended, err := d.Check(path)
	switch {
	case errors.Is(err, ErrDamaged):
		return false, err, nil
	case err != nil:
		return false, nil, fmt.Errorf("cannot check %s: %w", path, err)
	case mended != "":
		d.Logger.Error("a database of containerd was damaged and is mended; what runs keeps running", "security", true, "file", path, "found", mended)
	}
	return false, nil, nil
}

// hasFiles says that there is something that only a database explains.
func (d databases) hasFiles() bool {
	for _, pattern := range []string{
		filepath.Join(d.content(), "blobs", "*", "*"),
		filepath.Join(d.snapshotter("*"), "snapshots", "*"),
	} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 { // the patterns are well-formed
			return true
		}
	}
	return false
}

// replaceMetadata puts a new database in the place of that of the metadata. It knows the content that there is on the
// device; what else there was is made anew by whoever wants it. The snapshots are of no use without it.
func (d databases) replaceMetadata(ctx context.Context, damage error) error {
	found, kept := "it was gone", ""
	if damage != nil {
		found, kept = damage.Error(), d.metadata()+bad
	}
	d.Logger.Error("the database of containerd is lost and made anew; all containers are made anew",
		"security", true, "file", d.metadata(), "found", found, "kept", kept)
	for _, name := range snapshotters() {
		if err := d.moveSnapshots(name); err != nil {
			return err
		}
		if err := remove(filepath.Join(d.snapshotter(name), "metadata.db")); err != nil {
			return err
		}
	}
	fresh := d.metadata() + ".new"
	err := d.fill(ctx, fresh)
	if err != nil && isFull(err) {
		// To keep what is damaged is not worth a failed start.
		if err = errors.Join(remove(d.metadata()+bad), remove(d.metadata())); err == nil {
			err, damage = d.fill(ctx, fresh), nil
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot make database of containerd anew: %w", err), remove(fresh))
	}
	if damage != nil {
		if err := remove(d.metadata() + bad); err != nil {
			return err
		}
		_ = os.Link(d.metadata(), d.metadata()+bad)
	}
	if err := os.Rename(fresh, d.metadata()); err != nil {
		return fmt.Errorf("cannot make database of containerd anew: %w", err)
	}
	return syncDirectory(filepath.Dir(d.metadata()))
}

// fill makes a database at path that knows the content of the device, which a lease holds until somebody has said what is
// still wanted.
func (d databases) fill(ctx context.Context, path string) error {
	if err := remove(path); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
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

// setAside makes way for a new database of a snapshotter. The metadata forgets what was made of its snapshots when it is
// opened; images are unpacked again when they are wanted.
func (d databases) setAside(name string, damage error) error {
	left, _ := filepath.Glob(filepath.Join(d.snapshotter(name), "snapshots", "*")) // the pattern is well-formed
	if damage == nil && len(left) == 0 {
		return nil // it was never used
	}
	path := filepath.Join(d.snapshotter(name), "metadata.db")
	found, kept := "it was gone", ""
	if damage != nil {
		found, kept = damage.Error(), path+bad
	}
	d.Logger.Error("the database of a snapshotter is lost and made anew; its containers are made anew",
		"security", true, "file", path, "found", found, "kept", kept)
	if err := d.moveSnapshots(name); err != nil {
		return err
	}
	if damage == nil {
		return nil
	}
	if err := os.Rename(path, path+bad); err != nil {
		return fmt.Errorf("cannot set database of snapshotter aside: %w", err)
	}
	return syncDirectory(filepath.Dir(path))
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
	return syncDirectory(dir)
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
		return fmt.Errorf("cannot make way for a new database of containerd: %w", err)
	}
	return nil
}

func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err == nil {
		err = errors.Join(dir.Sync(), dir.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot sync directory of containerd: %w", err)
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
		Text:   "a database of containerd was damaged, and containers were made anew: " + strings.Join(found, ", "),
		Mend:   "look at the medium of the state directory, and remove what is kept",
	}
}
