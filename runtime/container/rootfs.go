package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/tree"
)

// prepareSnapshot replaces what an unfinished Create or Delete left.
func prepareSnapshot(ctx context.Context, s snapshots.Snapshotter, id string, l Labels) ([]mount.Mount, error) {
	prepare := func() ([]mount.Mount, error) {
		return s.Prepare(ctx, id, l.Root, snapshots.WithLabels(map[string]string{OwnerKey: l.Project, keyService: l.Service}))
	}
	mounts, err := prepare()
	if errdefs.IsAlreadyExists(err) {
		if err := removeSnapshot(ctx, s, id); err != nil {
			return nil, err
		}
		mounts, err = prepare()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot prepare snapshot: %w", err)
	}
	return mounts, nil
}

// isLost reports that the writable directory of a root file system is missing, although others
// exist: containerd's database reaches the medium before the directories, and a power cut
// may come between.
func isLost(mounts []mount.Mount) bool {
	for _, m := range mounts {
		for _, option := range m.Options {
			key, dir, _ := strings.Cut(option, "=")
			if key != "upperdir" && key != "workdir" {
				continue
			}
			if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
				continue
			}
			if _, err := os.Lstat(filepath.Dir(filepath.Dir(dir))); err == nil { // otherwise it is not of this device
				return true
			}
		}
	}
	return false
}

// deepRootfs is the depth of directories that containerd can remove, with a descriptor for each.
const deepRootfs = 256

func removeSnapshot(ctx context.Context, s snapshots.Snapshotter, id string) error {
	if mounts, err := s.Mounts(ctx, id); err == nil {
		for _, dir := range containerd.WrittenDirs(mounts) {
			if deep, err := tree.IsDeeper(ctx, dir, deepRootfs); err == nil && deep {
				_ = tree.Empty(ctx, dir) // the rest is left to containerd
			}
		}
	}
	if err := s.Remove(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot remove snapshot %s: %w", id, err)
	}
	return nil
}

// withRootfs mounts the root file system of a stopped container, read-only, while f runs.
func (p *paths) withRootfs(id string, mounts []mount.Mount, f func(root string) error) (err error) {
	root := p.mountDir(id)
	if err := detach(root); err != nil { // from a killed process
		return err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("cannot mount root file system: %w", err)
	}
	defer func() { err = errors.Join(err, detach(root)) }()
	readOnly := slices.Clone(mounts)
	for i, m := range readOnly {
		// What was mounted without syncing cannot be mounted so again, and the container comes later.
		options := slices.DeleteFunc(slices.Clone(m.Options), func(o string) bool { return o == "volatile" || o == "fsync=volatile" })
		readOnly[i].Options = append(options, "ro")
	}
	if err := mount.All(readOnly, root); err != nil {
		return fmt.Errorf("cannot mount root file system: %w", err)
	}
	return f(root)
}

// sweepMounts undoes the mounts left by a killed process.
func (p *paths) sweepMounts() error {
	left, err := filepath.Glob(p.mountDir("*"))
	for _, root := range left {
		_ = makePrivateMount(root) // bindTo may not have got to it; fails if nothing is mounted
		err = errors.Join(err, detach(root))
	}
	return err
}

// detach unmounts everything at root and removes the directory, but nothing in it.
func detach(root string) error {
	err := tree.Detach(root)
	if err == nil {
		err = os.Remove(root)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
