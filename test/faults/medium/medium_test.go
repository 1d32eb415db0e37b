package medium_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/faults/medium"
	"github.com/margolite/margolite/test/isolated"
)

func TestMain(m *testing.M) { os.Exit(isolated.Main(m)) }

const bytesOfDisk = 64 << 20

// disk is a new one with an ext4.
func disk(t *testing.T) *medium.Disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	image := filepath.Join(t.TempDir(), "image")
	check(t, medium.Format(image, bytesOfDisk))
	d := expect.Value(medium.Load(image))(t)
	return d
}

func mount(t *testing.T, d *medium.Disk) (*medium.Mounted, string) {
	t.Helper()
	dir := t.TempDir()
	m := expect.Value(d.Mount(filepath.Join(t.TempDir(), "disk"), dir))(t)
	return m, dir
}

var check = expect.Check

// synced writes a file and has it on the medium.
func synced(file string, content []byte) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// inDir calls what has a directory on the medium, or all of its file system.
func inDir(dir string, sync func(fd int) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(sync(int(d.Fd())), d.Close())
}

func TestWhatWasSyncedOutlivesThePower(t *testing.T) {
	for i, loss := range medium.Losses() {
		t.Run(string(loss), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			d := disk(t)
			want := map[string][]byte{}
			for round := range 5 {
				m, dir := mount(t, d)
				for name, content := range want {
					if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, content) {
						t.Errorf("after cut %d %s has %d bytes, %v, want %d", round, name, len(got), err, len(content))
					}
				}
				name := fmt.Sprint("file", round)
				content := bytes.Repeat([]byte(name), 10_000*(round+1))
				check(t, synced(filepath.Join(dir, name), content))
				check(t, inDir(dir, unix.Fsync))
				want[name] = content
				check(t, os.WriteFile(filepath.Join(dir, name+".unsynced"), content, 0o600))
				if rng.IntN(2) == 0 {
					check(t, inDir(dir, unix.Syncfs))
				}
				d = d.Cut(loss, rng)
				check(t, m.Forget())
			}
			image := filepath.Join(t.TempDir(), "after")
			check(t, d.Save(image))
			check(t, medium.Check(image))
		})
	}
}

func TestWhatWasNotSyncedIsLost(t *testing.T) {
	d := disk(t)
	m, dir := mount(t, d)
	check(t, os.WriteFile(filepath.Join(dir, "file"), []byte("here"), 0o600))
	d = d.Cut(medium.All, rand.New(rand.NewPCG(1, 1)))
	check(t, m.Forget())
	m, dir = mount(t, d)
	expect.Error(t, expect.ErrorOf(os.Stat(filepath.Join(dir, "file"))), os.ErrNotExist, "it is there")
	check(t, m.Unmount())
}

func TestAWriteFails(t *testing.T) {
	d := disk(t)
	m, dir := mount(t, d)
	check(t, synced(filepath.Join(dir, "file"), []byte("one")))
	d.Fail(medium.Fault{})
	if err := synced(filepath.Join(dir, "file"), []byte("two")); !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.EROFS) {
		t.Errorf("writing says %v", err)
	}
	if err := inDir(dir, unix.Syncfs); err == nil { // the journal now
		t.Error("syncing says nothing of writes that failed")
	}
	if c := d.Counts(); c.Failed == 0 {
		t.Errorf("nothing failed: %+v", c)
	}
	d.Mend()
	if err := os.WriteFile(filepath.Join(dir, "other"), nil, 0o600); !errors.Is(err, syscall.EROFS) && !errors.Is(err, syscall.EIO) {
		t.Errorf("a file system with an error takes writes: %v", err)
	}
	d = d.Cut(medium.None, nil)
	check(t, m.Forget())
	image := filepath.Join(t.TempDir(), "after")
	check(t, d.Save(image))
	check(t, medium.Check(image))
	d = expect.Value(medium.Load(image))(t)
	m, dir = mount(t, d)
	check(t, synced(filepath.Join(dir, "file"), []byte("three")))
	check(t, m.Unmount())
}

func TestAFlushFails(t *testing.T) {
	d := disk(t)
	m, dir := mount(t, d)
	d.Fail(medium.Fault{Flush: true, Times: 1})
	expect.True(t, synced(filepath.Join(dir, "file"), []byte("one")) != nil, "syncing says nothing of a flush that failed")
	d.Cut(medium.All, nil)
	check(t, m.Forget())
}

// A thread of this process that waits for the disk, as in an unmount, would keep the
// descriptor of its server open after a kill: the kernel would wait for answers for ever.
func TestOnlyServersHoldTheDescriptor(t *testing.T) {
	m, _ := mount(t, disk(t))
	descriptors := expect.Value(filepath.Glob("/proc/self/fd/*"))(t)
	for _, d := range descriptors {
		if target, _ := os.Readlink(d); target == "/dev/fuse" {
			t.Errorf("%s is that of a server", d)
		}
	}
	check(t, m.Unmount())
}
