package embedded

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/plugins"
	"golang.org/x/sys/unix"
)

// clearBundles removes what a killed predecessor has left of bundles that it was
// deleting: containerd renames one to a hidden name first, and never looks at
// hidden ones again. A container has the same id each time it is made here; one of
// which such a rest is there could neither be deleted nor made again.
func clearBundles(o Options) error {
	var failed error
	for _, root := range []string{o.State, o.Root} {
		rests, err := filepath.Glob(filepath.Join(root, string(plugins.RuntimePluginV2)+".task", "*", ".*"))
		for _, rest := range rests {
			err = errors.Join(err, clearBundle(rest))
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// clearBundle removes nothing of a root file system that is mounted in it still.
func clearBundle(dir string) error {
	rootfs := filepath.Join(dir, "rootfs")
	if err := mount.UnmountRecursive(rootfs, unix.MNT_DETACH); err != nil {
		return err
	}
	if err := os.Remove(rootfs); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir)
}
