package container_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/test/expect"
)

func TestSourcesLeadWhereTheyLed(t *testing.T) {
	d := onOne(t)
	dir := t.TempDir()
	for _, name := range []string{"one/file", "two/file"} {
		d.write(filepath.Join(dir, name), name)
	}
	link := filepath.Join(dir, "current")
	lead := func(link, to string) {
		t.Helper()
		check(t, errors.Join(os.RemoveAll(link), os.Symlink(to, link)))
	}
	lead(link, "one")

	c := d.config("web", "")
	c.Service.Mounts = []compose.Mount{
		{Path: link, Target: "/dir", Create: true},
		{Path: filepath.Join(link, "file"), Target: "/file"},
		{Path: filepath.Join(dir, "one"), Target: "/passing", Propagation: "rslave"},
		{Path: "/", Target: "/all", ReadOnly: true},
	}
	id := d.up(c)
	expect.Equal(t, d.sh(id, "cat /dir/file /file /passing/file; test -d /all/etc"), "one/fileone/fileone/file", "output")

	t.Log("a link that the site turns elsewhere is not followed before somebody judges it")
	lead(link, "two")
	d.stop(id)
	d.start(id)
	expect.Equal(t, d.sh(id, "cat /dir/file /file"), "one/fileone/file", "output")

	t.Log("nor is one in the place of what was mounted")
	d.stop(id)
	check(t, os.Rename(filepath.Join(dir, "one"), filepath.Join(dir, "aside")))
	lead(filepath.Join(dir, "one"), "/etc")
	err := d.Start(d.ctx(), id)
	expect.Error(t, err, container.ErrMoved, "start")
	expect.ErrorWith(t, err, "it leads to /etc now", "start")

	t.Log("what is gone is not made where its path does not lead any more")
	check(t, os.Remove(filepath.Join(dir, "one")))
	expect.Error(t, d.Start(d.ctx(), id), os.ErrNotExist, "start")
	check(t, os.Rename(filepath.Join(dir, "aside"), filepath.Join(dir, "one")))
	d.start(id)
	expect.Equal(t, expect.Value(filepath.Glob(filepath.Join(d.run, "mounts/*")))(t), nil, "left mounted")
}

// What a kill leaves bound goes, and what is mounted below stays on the device.
func TestSourcesOfAKilledStart(t *testing.T) {
	d := onOne(t)
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	check(t, os.Mkdir(below, 0o755))
	run(t, "mount", "--bind", dir, dir)
	run(t, "mount", "--make-shared", dir)
	run(t, "mount", "-t", "tmpfs", "tmpfs", below)
	run(t, "mount", "--make-shared", below)
	t.Cleanup(func() { run(t, "umount", "-R", dir) })
	d.write(filepath.Join(below, "file"), "below")

	left := filepath.Join(d.run, "mounts", strings.Repeat("0", 32)+".s0")
	check(t, os.MkdirAll(left, 0o700))
	run(t, "mount", "--rbind", dir, left)
	d.restart()
	expect.Error(t, expect.ErrorOf(os.Lstat(left)), os.ErrNotExist, "it is left")
	c := d.config("web", "")
	c.Service.Mounts = []compose.Mount{{Path: dir, Target: "/dir"}}
	expect.Equal(t, d.sh(d.up(c), "cat /dir/below/file"), "below", "output")
	expect.Equal(t, string(expect.Value(os.ReadFile(filepath.Join(below, "file")))(t)), "below", "the file below")
}

func TestDevicesLeadWhereTheyLed(t *testing.T) {
	d := onOne(t)
	dir := t.TempDir()
	link := filepath.Join(dir, "device")
	check(t, os.Symlink("/dev/null", link))
	c := d.config("web", "")
	c.Service.Devices = []compose.Device{{Path: link, Real: "/dev/null", Target: "/dev/mine", Permissions: "rw"}}
	id := d.up(c)
	d.sh(id, "echo > /dev/mine")
	d.stop(id)
	check(t, errors.Join(os.Remove(link), os.Symlink("/dev/kmsg", link)))
	expect.Error(t, d.Start(d.ctx(), id), container.ErrMoved, "start")
	expect.Error(t, d.Check(d.ctx(), c), container.ErrMoved, "check")
}

func TestVolumesLeadWhereTheyLed(t *testing.T) {
	d := onOne(t)
	dir := t.TempDir()
	d.write(filepath.Join(dir, "one/file"), "one")
	c := d.config("web", "")
	real := filepath.Join(dir, "one")
	c.Volumes = map[string]*compose.Volume{"bound": {Name: "bound", Type: "none", Device: real, Real: real, Options: []string{"bind"}}}
	c.Service.Mounts = []compose.Mount{{Volume: "bound", Target: "/bound"}}
	id := d.up(c)
	expect.Equal(t, d.sh(id, "cat /bound/file"), "one", "output")
	d.delete(id)
	check(t, errors.Join(os.Rename(real, real+"-aside"), os.Symlink("/etc", real)))
	expect.Error(t, d.Create(d.ctx(), c), container.ErrMoved, "create")
}
