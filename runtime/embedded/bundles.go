package embedded

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/plugins"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/tree"
)

// clearBundles removes what a killed predecessor has left of bundles that it was
// deleting: containerd renames one to a hidden name first, and never looks at
// hidden ones again. A container has the same id each time it is made here; one of
// which such a rest is there could neither be deleted nor made again. Nothing goes of
// a root file system that is mounted in it still.
func clearBundles(ctx context.Context, o Options) (err error) {
	for _, root := range []string{o.State, o.Root} {
		rests, _ := filepath.Glob(filepath.Join(root, string(plugins.RuntimePluginV2)+".task", "*", ".*")) // the pattern is valid
		for _, rest := range rests {
			err = errors.Join(err, mount.UnmountRecursive(filepath.Join(rest, "rootfs"), unix.MNT_DETACH), tree.Remove(ctx, rest))
		}
	}
	return err
}
