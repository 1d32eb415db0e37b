package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"
)

// trial is how the directories of canOverlay begin.
const trial = "overlay-"

// reserved are characters that separate or escape what overlayfs is told, which containerd does not escape.
const reserved = `:,\`

var errReserved = errors.New("its path has a character that overlayfs does not support")

// canOverlay says why overlayfs cannot keep snapshots in a directory, which it makes
// where it is missing. It tries.
func canOverlay(root string) error {
	if i := strings.IndexAny(root, reserved); i >= 0 {
		return fmt.Errorf("%w: %c", errReserved, root[i])
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	typed, err := fs.SupportsDType(root)
	if err != nil {
		return err
	}
	if !typed {
		return errors.New("its file system does not report file types in directories (d_type)")
	}
	lock, err := os.Open(root) // one at a time: what lies there otherwise is of somebody who was killed
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), trial) {
			left := filepath.Join(root, e.Name())
			_ = unix.Unmount(filepath.Join(left, "merged"), unix.MNT_DETACH)
			_ = os.RemoveAll(left)
		}
	}
	dir, err := os.MkdirTemp(root, trial)
	if err != nil {
		return err
	}
	// What cannot be removed stays, and says nothing about overlayfs.
	defer func() { _ = os.RemoveAll(dir) }()
	merged := filepath.Join(dir, "merged")
	for _, name := range []string{"lower1", "lower2", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s/lower2:%s/lower1,upperdir=%s/upper,workdir=%s/work", dir, dir, dir, dir)
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return fmt.Errorf("cannot mount: %w", err)
	}
	_ = unix.Unmount(merged, unix.MNT_DETACH)
	return nil
}

func inMemory(dir string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(dir, &stat) == nil && stat.Type == unix.TMPFS_MAGIC
}
