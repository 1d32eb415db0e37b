package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/cmd/margolite/config"
)

// lockOptions are for the directory of lock files: any workload that mounts it may fill it.
const lockOptions = "mode=1777,size=4m,nr_inodes=8192"

// boundedDirs are the directories in state.run that workloads fill, with the options of
// the tmpfs of its own that each gets: what they write takes neither the memory of the
// device nor the room of the rest. A shim that is not ours ends the output of every
// container when there is no room for it, so its logs are left where they are.
func boundedDirs(cfg *config.Config, otherShim bool) map[string]string {
	dirs := map[string]string{filepath.Join(cfg.State.Run, "locks"): lockOptions}
	if cfg.Runtime.Logs.Dir == "" && !otherShim {
		dirs[filepath.Join(cfg.State.Run, "logs")] = fmt.Sprintf("mode=711,size=%d", cfg.Runtime.Logs.Total)
	}
	return dirs
}

// boundDirs bounds all that it can.
func boundDirs(dirs map[string]string) error {
	var errs []error
	for dir, options := range dirs {
		errs = append(errs, boundDir(dir, options))
	}
	return errors.Join(errs...)
}

// boundDir mounts a tmpfs at dir, or gives the one that is there other options. It hides
// nothing: a directory with files in it, as after an upgrade, stays as it is until the
// next boot.
func boundDir(dir, options string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("cannot prepare directory: %w", err)
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	switch mounted, err := isTmpfsAt(dir); {
	case err != nil:
		return err
	case mounted:
		flags |= unix.MS_REMOUNT
	case len(entries) > 0:
		return nil
	}
	if err := unix.Mount("margolite", dir, "tmpfs", flags, options); err != nil {
		_ = os.Remove(dir) // who needs it makes it; it stays where it is in use
		return fmt.Errorf("cannot mount a tmpfs with %s at %s: %w", options, dir, err)
	}
	return nil
}

// unboundDir undoes boundDir, with all that is in dir.
func unboundDir(dir string) error {
	mounted, err := isTmpfsAt(dir)
	if err != nil || !mounted {
		return err
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("cannot unmount %s: %w", dir, err)
	}
	return nil
}

// isTmpfsAt tells whether a tmpfs is mounted at dir itself.
func isTmpfsAt(dir string) (bool, error) {
	var at, above unix.Stat_t
	var fs unix.Statfs_t
	err := unix.Lstat(dir, &at)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err == nil {
		err = errors.Join(unix.Stat(filepath.Dir(dir), &above), unix.Statfs(dir, &fs))
	}
	if err != nil {
		return false, fmt.Errorf("cannot look at directory %s: %w", dir, err)
	}
	return at.Dev != above.Dev && fs.Type == unix.TMPFS_MAGIC, nil
}
