package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"golang.org/x/sys/unix"
)

// trial is the prefix of containerd's test directories.
const trial = "multiple-lowerdir-check"

// reserved separate or escape overlayfs options, which containerd does not escape.
const reserved = `:,\`

var errReserved = errors.New("its path has a character that overlayfs does not support")

// canOverlay tries overlayfs in a directory, created if missing, and says why it fails.
func canOverlay(root string) error {
	if i := strings.IndexAny(root, reserved); i >= 0 {
		return fmt.Errorf("%w: %c", errReserved, root[i])
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	lock, err := os.Open(root) // one at a time: other test directories are of killed processes
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	left, _ := fs.Glob(os.DirFS(root), trial+"*") // at worst they stay
	for _, name := range left {
		dir := filepath.Join(root, name)
		_ = unix.Unmount(filepath.Join(dir, "merged"), unix.MNT_DETACH)
		_ = os.RemoveAll(dir)
	}
	return overlayutils.Supported(root)
}
