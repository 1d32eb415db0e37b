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
	switch {
	case len(c.usersOf(running, dir)) > 0:
		return nil
	case v.Type != "":
		return fillMounted(dir, root, target)
	default:
		return fillVolume(dir, root, target)
	}
}

// fillMounted copies into a volume that is mounted, which cannot be replaced as
// a whole.
func fillMounted(dir, root, target string) error {
	source, err := confs.RootPath(root, target)
	if err != nil {
		return fmt.Errorf("cannot find %s in image: %w", target, err)
	}
	if info, err := os.Lstat(source); err != nil || !info.IsDir() {
		return nil
	}
	if err := confs.CopyDir(dir, source); err != nil {
		return fmt.Errorf("cannot fill volume: %w", err)
	}
	return syncFileSystem(dir)
}

// fillVolume gives an empty volume what the image has at target: content,
// owner and mode, as Docker does. The volume is replaced as a whole, on the
// medium, or stays empty. No container may have it mounted.
func fillVolume(dir, root, target string) error {
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

	filling := fillingPath(dir)
	if err := os.RemoveAll(filling); err != nil {
		return fmt.Errorf("cannot fill volume: %w", err)
	}
	if err := confs.CopyDir(filling, source); err != nil {
		return errors.Join(fmt.Errorf("cannot fill volume: %w", err), os.RemoveAll(filling))
	}
	if err := syncFileSystem(filling); err != nil {
		return fmt.Errorf("cannot fill volume: %w", err)
	}
	// The kernel lets a directory replace an empty one, which os.Rename does
	// not ask of it; a volume with content wins.
	if err := unix.Rename(filling, dir); errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return os.RemoveAll(filling)
	} else if err != nil {
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

func syncFileSystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("cannot sync %s: %w", dir, err)
	}
	return nil
}
