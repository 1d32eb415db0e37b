package log

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// DefaultCap is the size from which a file of a log is rotated.
const DefaultCap = 1 << 20

const (
	suffix        = "-json.log" // as in Docker
	partialSuffix = ".partial"  // of an incomplete file
)

// Path returns the file for the output of the container id.
func Path(dir, id string) string { return filepath.Join(dir, id+suffix) }

func numbered(path string, n int) string {
	if n == 0 {
		return path
	}
	return path + "." + strconv.Itoa(n)
}

// Remove deletes the log at path with its rotated files.
func Remove(path string) error {
	names := []string{path + partialSuffix}
	for n := maxFiles; n >= 0; n-- { // the current file last: its end tells followers that the log ends
		names = append(names, numbered(path, n))
	}
	if err := removeAll(names...); err != nil {
		return fmt.Errorf("cannot remove log: %w", err)
	}
	return nil
}

func removeAll(names ...string) error {
	var errs []error
	for _, name := range names {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
