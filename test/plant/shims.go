package plant

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ShimDir is where Debian's containerd keeps the sockets of its shims, whatever
// its state is.
const ShimDir = "/run/containerd"

// MountShimDir gives this mount namespace one of its own, in which the machine's
// containerd has nothing.
func MountShimDir() error {
	if err := os.MkdirAll(ShimDir, 0o711); err != nil { // nothing has run on this machine yet
		return fmt.Errorf("cannot make the directory of shims: %w", err)
	}
	if err := unix.Mount("tmpfs", ShimDir, "tmpfs", 0, "mode=711"); err != nil {
		return fmt.Errorf("cannot mount the directory of shims: %w", err)
	}
	return nil
}
