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

// clearBundles removes bundles that a killed predecessor was deleting: containerd first renames a
// bundle to a hidden name, and then ignores it. Since containers keep their ids, such a leftover
// would block deleting or creating one. A root file system still mounted in it is spared.
func clearBundles(ctx context.Context, o Options) (err error) {
	for _, root := range []string{o.State, o.Root} {
		rests, _ := filepath.Glob(filepath.Join(root, string(plugins.RuntimePluginV2)+".task", "*", ".*")) // the pattern is valid
		for _, rest := range rests {
			err = errors.Join(err, mount.UnmountRecursive(filepath.Join(rest, "rootfs"), unix.MNT_DETACH), tree.Remove(ctx, rest))
		}
	}
	return err
}
