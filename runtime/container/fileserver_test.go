package container_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/test/expect"
)

// A file server that is gone keeps everybody waiting who looks at what it serves.
// Nobody has to, to tell that it is mounted, nor to unmount it.
func TestNobodyWaitsForAFileServerThatIsGone(t *testing.T) {
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("needs FUSE:", err)
	}
	t.Cleanup(func() { _ = unix.Close(server) }) // ends who waits
	d := onOne(t)
	v := container.Volume{Name: "far", Type: "fuse", Options: []string{
		fmt.Sprintf("fd=%d", server), "rootmode=40000", "user_id=0", "group_id=0",
	}}
	if err := d.EnsureVolume(d.ctx(), "shop", v); err != nil {
		t.Skip("needs to mount FUSE:", err)
	}
	isMounted := func() bool {
		mounts, _ := os.ReadFile("/proc/self/mountinfo")
		return strings.Contains(string(mounts), "/volumes/shop/far~")
	}
	done := make(chan error, 1)
	go func() {
		there := isMounted()
		err := errors.Join(d.EnsureVolume(d.ctx(), "shop", v), d.RemoveProject(d.ctx(), "shop"))
		if stays := isMounted(); !there || stays {
			err = errors.Join(err, fmt.Errorf("the volume was there: %v, and stays: %v", there, stays))
		}
		done <- err
	}()
	select {
	case err := <-done:
		expect.OK(t, err)
	case <-time.After(20 * time.Second):
		t.Error("somebody waits for the file server")
		_ = unix.Close(server)
		<-done
	}
}

func TestNobodyElseOnTheDeviceReachesVolumes(t *testing.T) {
	d := onOne(t)
	dirs := []string{filepath.Join(d.state, "volumes"), filepath.Join(d.run, "mounts")}
	for _, dir := range dirs { // as an older agent made them
		check(t, os.Chmod(dir, 0o711))
	}
	d.restart()
	for _, dir := range dirs {
		expect.Equal(t, expect.Value(os.Stat(dir))(t).Mode().Perm(), 0o700, "mode of %s", dir)
	}
}
