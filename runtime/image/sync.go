package image

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Sync puts everything that was written to the file system of dir on its medium. containerd syncs what it knows about
// layers, but not their files.
func Sync(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot sync file system of %s: %w", dir, err)
	}
	if err := errors.Join(unix.Syncfs(fd), unix.Close(fd)); err != nil {
		return fmt.Errorf("cannot sync file system of %s: %w", dir, err)
	}
	return nil
}
