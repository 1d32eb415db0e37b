package capability

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// storage is the size in bytes of the file system that a directory is on, or
// will be on where it does not exist yet.
func (m *machine) storage(dir string) uint64 {
	var stat unix.Statfs_t
	for {
		err := unix.Statfs(dir, &stat)
		parent := filepath.Dir(dir)
		switch {
		case err == nil:
			return stat.Blocks * uint64(stat.Frsize)
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, fs.ErrNotExist) && parent != dir:
			dir = parent
		default:
			m.fail("cannot find out the size of the file system of %s: %w", dir, err)
			return 0
		}
	}
}
