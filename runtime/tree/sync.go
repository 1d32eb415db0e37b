package tree

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Sync writes the names in a directory to the medium.
func Sync(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// SyncAll writes everything in the file system of a directory to the medium.
func SyncAll(dir string) error {
	f, err := os.Open(dir)
	if err == nil {
		err = errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot sync file system of %s: %w", dir, err)
	}
	return nil
}
