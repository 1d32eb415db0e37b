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
	"golang.org/x/sys/unix"
)

// prepareSnapshot makes a fresh root file system for a container that has none.
// What is there already is of a Create or Delete that did not end.
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

func removeSnapshot(ctx context.Context, s snapshots.Snapshotter, id string) error {
	if err := s.Remove(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot remove snapshot %s: %w", id, err)
	}
	return nil
}

// withRootfs mounts the root file system of a container that does not run,
// read-only, while f looks at it.
func (c *Containers) withRootfs(id string, mounts []mount.Mount, f func(root string) error) (err error) {
	root := c.mountDir(id)
	if err := detach(root); err != nil { // of a process that was killed here
		return err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("cannot mount root file system: %w", err)
	}
	mounts = mount.RemoveVolatileOption(mounts)
	for i := range mounts {
		mounts[i].Options = append(slices.Clone(mounts[i].Options), "ro")
	}
	defer func() { err = errors.Join(err, detach(root)) }()
	if err := mount.All(mounts, root); err != nil {
		return fmt.Errorf("cannot mount root file system: %w", err)
	}
	return f(root)
}

func (c *Containers) mountDir(id string) string { return filepath.Join(c.o.RunDir, "mounts", id) }

// sweepMounts undoes what withRootfs and the like left when the process was killed.
func (c *Containers) sweepMounts() error {
	left, err := filepath.Glob(c.mountDir("*"))
	for _, root := range left {
		if strings.HasPrefix(filepath.Ext(root), ".s") {
			_ = makePrivateMount(root) // bindTo may not have come to it; fails where nothing is mounted
		}
		err = errors.Join(err, detach(root))
	}
	return err
}

// detach unmounts whatever is mounted at root, and removes the directory. It
// never removes anything below. It asks nobody what is mounted there: a file
// server that is gone would not answer.
func detach(root string) error {
	var err error
	for err == nil {
		err = unix.Unmount(root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if errors.Is(err, unix.EINVAL) { // nothing is mounted any more
		err = os.Remove(root)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot unmount %s: %w", root, err)
	}
	return nil
}
