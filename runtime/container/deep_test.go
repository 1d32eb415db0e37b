package container_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
)

// deep is more than a path can hold, and than there are descriptors.
const deep = 3000

// limitDescriptors has this process, with the embedded containerd, open no more files than a small system lets it.
func limitDescriptors(t *testing.T) {
	t.Helper()
	var was unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	few := was
	few.Cur = 1024
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	t.Cleanup(func() {
		expect.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	})
}

// A root file system that is deeper than there are descriptors goes with its container.
func TestADeepRootFileSystemGoes(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: thousands of directories")
	}
	limitDescriptors(t)
	onEach(t, func(t *testing.T, d *device) {
		id := d.up(d.config("web", ""))
		root := fmt.Sprintf("/proc/%d/root/tmp", d.find(id).Pid)
		containerdtest.Deepen(t, root, deep)
		mounts, err := d.client.SnapshotService("overlayfs").Mounts(d.ctx(), id)
		if err != nil {
			t.Skip("needs the snapshotter overlayfs:", err)
		}
		dirs := containerd.WrittenDirs(mounts)
		expect.Require(t, len(dirs) == 1, "written to %v", dirs)
		d.stop(id)
		d.delete(id)
		lease, err := d.client.LeasesService().Create(d.ctx(), leases.WithRandomID())
		if err == nil {
			err = d.client.LeasesService().Delete(d.ctx(), lease, leases.SynchronousDelete) // collects
		}
		check(t, err)
		expect.Eventually(d, "its files go", func() bool {
			_, err := os.Lstat(dirs[0])
			return errors.Is(err, os.ErrNotExist)
		})
	})
}

var check = expect.Check
