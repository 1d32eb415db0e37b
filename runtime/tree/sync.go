package tree

import (
	"errors"
	"os"
)

// Sync brings the names in a directory to the medium.
func Sync(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
