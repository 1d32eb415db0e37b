package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	confs "github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/tree"
)

// fillVolume gives an empty volume that no running container mounts what the
// image has at target.
func (c *Containers) fillVolume(ctx context.Context, project string, v Volume, root, target string) error {
	dir := c.volumeDir(project, v)
	if empty, err := isEmpty(dir); err != nil || !empty {
		return err
	}
	all, err := c.List(ctx)
	if err != nil {
		return err
	}
	running := slices.DeleteFunc(all, func(c Container) bool { return c.State == Created })
	if len(c.volumes.users(running)[dir]) > 0 {
		return nil
	}
	return fillVolume(dir, root, target, v.Type != "")
}

// fillVolume gives an empty volume what the image has at target: content,
// owner and mode, as Docker does. The volume is replaced as a whole, on the
// medium, or stays empty; one that is mounted cannot be replaced, and is written
// into. No container may have it mounted.
func fillVolume(dir, root, target string, mounted bool) (err error) {
	if empty, err := isEmpty(dir); err != nil || !empty {
		return err
	}
	source, err := confs.RootPath(root, target)
	if err != nil {
		return fmt.Errorf("cannot find %s in image: %w", target, err)
	}
	if info, err := os.Lstat(source); err != nil || !info.IsDir() {
		return nil // nothing to copy; the mount covers what is there
	}
	into := dir
	if !mounted {
		into = fillingPath(dir)
		if err := os.RemoveAll(into); err != nil {
			return fmt.Errorf("cannot fill volume: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(into)) }() // which was renamed, or is in vain
	}
	if err := confs.CopyDir(into, source); err != nil {
		return fmt.Errorf("cannot fill volume: %w", err)
	}
	if err := tree.SyncAll(into); err != nil || mounted {
		return err
	}
	// The kernel lets a directory replace an empty one, which os.Rename does
	// not ask of it; a volume with content wins.
	err = unix.Rename(into, dir)
	if err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("cannot fill volume: %w", err)
	}
	return tree.Sync(filepath.Dir(dir))
}

// fillingPath is where a volume is filled. No volume's name starts with a dot.
func fillingPath(dir string) string {
	return filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".filling")
}

// isEmpty tells whether there is nothing in a directory. It reads one name, however many a container has put there.
func isEmpty(dir string) (bool, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}
