//go:build !slim

package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
)

// forgetUnbacked removes from the metadata the snapshots that their snapshotter does not know, since its database or
// that of the metadata lost transactions, and the containers that were made of them. Each snapshot is known to the
// snapshotter for longer than to the metadata, so otherwise there are none; then nothing is written.
func forgetUnbacked(ctx context.Context, file *bolt.DB, snapshotters map[string]snapshots.Snapshotter, log *slog.Logger) error {
	for name, snapshotter := range snapshotters {
		if !mentions(file, name) {
			continue // asking it would make a database
		}
		backed, err := namesOf(ctx, snapshotter)
		if err != nil {
			return fmt.Errorf("cannot list snapshots of %s: %w", name, err)
		}
		u := unbacked{snapshotter: name, backed: backed}
		err = file.Update(u.forget)
		if errors.Is(err, errNothing) {
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot forget lost snapshots: %w", err)
		}
		log.Warn("snapshots are lost, and what was made of them is made anew", "snapshotter", name, "snapshots", u.lost, "containers", u.containers)
	}
	return nil
}

// namesOf are the snapshots that a snapshotter knows.
func namesOf(ctx context.Context, snapshotter snapshots.Snapshotter) (map[string]bool, error) {
	names := make(map[string]bool)
	err := snapshotter.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		names[info.Name] = true
		return nil
	})
	if errdefs.IsNotFound(err) { // its database is empty
		err = nil
	}
	return names, err
}

// mentions says that the metadata has snapshots of a snapshotter.
func mentions(file *bolt.DB, snapshotter string) bool {
	found := false
	_ = file.View(func(tx *bolt.Tx) error { // it has no error of its own
		return eachNamespace(tx, func(namespace *bolt.Bucket) error {
			of := namespace.Bucket([]byte("snapshots"))
			found = found || of != nil && of.Bucket([]byte(snapshotter)) != nil
			return nil
		})
	})
	return found
}

// eachNamespace goes through the layout of containerd's metadata, see its package.
func eachNamespace(tx *bolt.Tx, do func(*bolt.Bucket) error) error {
	all := tx.Bucket([]byte("v1"))
	if all == nil {
		return nil
	}
	return all.ForEachBucket(func(name []byte) error { return do(all.Bucket(name)) })
}

// errNothing ends a transaction that has nothing to write.
var errNothing = errors.New("nothing to forget")

type unbacked struct {
	snapshotter      string
	backed           map[string]bool // by name in the snapshotter
	lost, containers int             // forgotten
}

func (u *unbacked) forget(tx *bolt.Tx) error {
	u.lost, u.containers = 0, 0
	err := eachNamespace(tx, u.forgetIn)
	if err == nil && u.lost == 0 {
		return errNothing
	}
	return err
}

func (u *unbacked) forgetIn(namespace *bolt.Bucket) error {
	all := namespace.Bucket([]byte("snapshots"))
	if all != nil {
		all = all.Bucket([]byte(u.snapshotter))
	}
	if all == nil {
		return nil
	}
	lost := make(map[string]bool)
	err := all.ForEachBucket(func(key []byte) error {
		if !u.backed[string(all.Bucket(key).Get([]byte("name")))] {
			lost[string(key)] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	for key := range lost {
		if parent := bytes.Clone(all.Bucket([]byte(key)).Get([]byte("parent"))); len(parent) > 0 && !lost[string(parent)] {
			if of := all.Bucket(parent); of != nil && of.Bucket([]byte("children")) != nil {
				if err := of.Bucket([]byte("children")).Delete([]byte(key)); err != nil {
					return err
				}
			}
		}
		if err := all.DeleteBucket([]byte(key)); err != nil {
			return err
		}
		u.lost++
	}
	return u.forgetContainers(namespace.Bucket([]byte("containers")), lost)
}

// forgetContainers removes the containers whose snapshots are lost.
func (u *unbacked) forgetContainers(all *bolt.Bucket, lost map[string]bool) error {
	if all == nil || len(lost) == 0 {
		return nil
	}
	var ids [][]byte
	err := all.ForEachBucket(func(id []byte) error {
		c := all.Bucket(id)
		if string(c.Get([]byte("snapshotter"))) == u.snapshotter && lost[string(c.Get([]byte("snapshotKey")))] {
			ids = append(ids, bytes.Clone(id))
		}
		return nil
	})
	for _, id := range ids {
		if err == nil {
			err = all.DeleteBucket(id)
		}
	}
	u.containers += len(ids)
	return err
}

// sweepSnapshots removes the files of snapshots that their snapshotter does not know: after a lost transaction it gives
// their numbers to new ones.
func (s *Server) sweepSnapshots(ctx context.Context, files databases) error {
	dirs, err := os.ReadDir(filepath.Join(files.snapshotter(s.snapshotter), "snapshots"))
	if err != nil || len(dirs) == 0 {
		return nil // there are none
	}
	instance, err := s.plugins.Get(plugins.SnapshotPlugin, s.snapshotter).Instance()
	if err != nil {
		return err
	}
	snapshotter := instance.(snapshots.Snapshotter)
	known, err := namesOf(ctx, snapshotter)
	if err != nil {
		return fmt.Errorf("cannot list snapshots: %w", err)
	}
	if cleaner, ok := snapshotter.(snapshots.Cleaner); ok && len(dirs) > len(known) {
		if err := cleaner.Cleanup(ctx); err != nil {
			return fmt.Errorf("cannot remove files of lost snapshots: %w", err)
		}
	}
	return nil
}
