package isolated

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
)

// Disk mounts an empty file system of so many bytes until the test ends: an ext4, where
// that can be had, or a tmpfs.
func Disk(t testing.TB, kind string, bytes int64) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := expect.Value(os.MkdirTemp("/tmp", "disk-"))(t) // paths of sockets are short
	image := dir + ".ext4"
	t.Cleanup(func() {
		expect.OK(t, errors.Join(unix.Unmount(dir, unix.MNT_DETACH), os.RemoveAll(dir), os.RemoveAll(image)))
	})
	if kind == "ext4" {
		out, err := exec.Command("sh", "-c", "truncate -s $0 $1 && mkfs.ext4 -q -m 0 $1 && mount -o loop $1 $2", fmt.Sprint(bytes), image, dir).CombinedOutput()
		if err != nil {
			t.Logf("no ext4 here, but a tmpfs: %v: %s", err, out)
			kind = "tmpfs"
		}
	}
	if kind == "tmpfs" {
		expect.Check(t, unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)))
	}
	return dir
}

// Fill takes every block of a file system, as somebody does whom nobody watches, and
// returns what gives them back.
func Fill(t testing.TB, dir string) (free func()) {
	t.Helper()
	file := filepath.Join(dir, "ballast")
	f := expect.Value(os.Create(file))(t)
	for block := make([]byte, 1<<20); len(block) >= 512; {
		if _, err := f.Write(block); errors.Is(err, unix.ENOSPC) {
			_ = f.Sync() // what was only promised is given
			block = block[:len(block)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
	var left unix.Statfs_t
	if err := errors.Join(f.Sync(), f.Close(), unix.Statfs(dir, &left)); err != nil || left.Bavail > 1 {
		t.Fatalf("%d blocks are left, %v", left.Bavail, err)
	}
	return func() {
		t.Helper()
		expect.Check(t, os.Remove(file))
	}
}
