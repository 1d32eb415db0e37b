package capability

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/shirou/gopsutil/v4/disk"
)

// storage returns the size in bytes of the file system for a directory, which need not exist yet.
func (m *machine) storage(ctx context.Context, dir string) uint64 {
	for {
		usage, err := disk.UsageWithContext(ctx, dir)
		parent := filepath.Dir(dir)
		switch {
		case err == nil:
			return usage.Total
		case errors.Is(err, fs.ErrNotExist) && parent != dir:
			dir = parent
		default:
			m.fail("cannot determine the size of the file system of %s: %w", dir, err)
			return 0
		}
	}
}
