package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	confs "github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"
)

// VolumeDir is where the content of a named volume lies.
func (c *Containers) VolumeDir(project, volume string) string {
	return filepath.Join(c.o.StateDir, "volumes", project, volume)
}

// HasVolume tells whether the named volume exists.
func (c *Containers) HasVolume(project, volume string) bool {
	return exists(c.VolumeDir(project, volume))
}

// EnsureVolume makes the named volume, empty, when it does not exist.
func (c *Containers) EnsureVolume(project, volume string) error {
	dir := c.VolumeDir(project, volume)
	if exists(dir) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return fmt.Errorf("cannot make volume %s: %w", volume, err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot make volume %s: %w", volume, err)
	}
	if err := syncDir(filepath.Dir(dir)); err != nil {
		return fmt.Errorf("cannot make volume %s: %w", volume, err)
	}
	return nil
}

// fillVolume gives an empty volume what the image has at target: content,
// owner and mode, as Docker does. The volume is replaced as a whole, on the
// medium, or stays empty. No container may have it mounted.
func fillVolume(dir, root, target string) error {
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		return err
	}
	source, err := confs.RootPath(root, target)
	if err != nil {
		return fmt.Errorf("cannot find %s in image: %w", target, err)
	}
	if info, err := os.Lstat(source); err != nil || !info.IsDir() {
		return nil // nothing to copy; the mount covers what is there
	}

	filling := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".filling") // no volume's name starts with a dot
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
	return syncDir(filepath.Dir(dir))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
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
