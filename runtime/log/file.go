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
	suffix        = "-json.log" // as Docker has it
	partialSuffix = ".partial"  // of a file that is not yet what its name says
)

// Path is the file that the output of the container id goes to.
func Path(dir, id string) string { return filepath.Join(dir, id+suffix) }

// numbered is the file that holds what path held n rotations ago.
func numbered(path string, n int) string {
	if n == 0 {
		return path
	}
	return path + "." + strconv.Itoa(n)
}

// Remove deletes the log at path, with all that was rotated.
func Remove(path string) error {
	names := []string{path + partialSuffix}
	for n := maxFiles; n >= 0; n-- { // the last to go tells who follows the log that it ends
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
