package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/cmd/margolite/config"
)

// boundDirs gives the directories in state.run that workloads fill a tmpfs of their own
// each: what they write takes neither the memory of the device nor the room of the rest.
func boundDirs(cfg *config.Config) error {
	err := boundDir(filepath.Join(cfg.State.Run, "locks"), "mode=1777,size=4m,nr_inodes=8192")
	if cfg.Runtime.Logs.Dir == "" {
		err = errors.Join(err, boundDir(filepath.Join(cfg.State.Run, "logs"), fmt.Sprintf("mode=711,size=%d", cfg.Runtime.Logs.Total)))
	}
	return err
}

// boundDir mounts a tmpfs at dir, or gives the one that is there other options. It hides
// nothing: a directory with files in it, as after an upgrade, stays as it is until the
// next boot, as does a tmpfs that holds more than it should.
func boundDir(dir, options string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot prepare directory: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err := unix.Mount("margolite", dir, "tmpfs", flags|unix.MS_REMOUNT, options)
	if errors.Is(err, unix.EINVAL) { // none is there
		entries, readErr := os.ReadDir(dir)
		if readErr != nil || len(entries) > 0 {
			return readErr
		}
		err = unix.Mount("margolite", dir, "tmpfs", flags, options)
	}
	if err != nil {
		_ = os.Remove(dir) // who needs it makes it; it stays where it is in use
		return fmt.Errorf("cannot mount a tmpfs with %s at %s: %w", options, dir, err)
	}
	return nil
}

func unboundDirs(cfg *config.Config) error {
	var errs []error
	for _, name := range []string{"locks", "logs"} {
		dir := filepath.Join(cfg.State.Run, name)
		err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("cannot unmount %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}
