package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/cmd/margolite/config"
)

// boundDirs puts each directory in state.run that workloads write to on a tmpfs of its own, so that
// they exhaust neither the device's memory nor the rest of state.run.
func boundDirs(cfg *config.Config) error {
	err := boundDir(filepath.Join(cfg.State.Run, "locks"), "mode=1777,size=4m,nr_inodes=8192")
	if cfg.Runtime.Logs.Dir == "" {
		err = errors.Join(err, boundDir(filepath.Join(cfg.State.Run, "logs"), fmt.Sprintf("mode=711,size=%d", cfg.Runtime.Logs.Total)))
	}
	return err
}

// boundDir mounts a tmpfs at dir, or changes the options of an existing one. It hides nothing: a
// directory with files, as after an upgrade, stays until the next boot, as does an overfull tmpfs.
func boundDir(dir, options string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot prepare directory: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err := unix.Mount("margolite", dir, "tmpfs", flags|unix.MS_REMOUNT, options)
	if errors.Is(err, unix.EINVAL) { // not mounted yet
		entries, readErr := os.ReadDir(dir)
		if readErr != nil || len(entries) > 0 {
			return readErr
		}
		err = unix.Mount("margolite", dir, "tmpfs", flags, options)
	}
	if err != nil {
		_ = os.Remove(dir) // recreated on demand; a busy one stays
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
