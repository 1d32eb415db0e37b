package container_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/log"
	"github.com/margolite/margolite/test/expect"
)

func TestAnonymousVolumes(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		c := d.config("web", "")
		c.Image.Volumes = map[string]struct{}{"/srv/data": {}, "/var/lib/x/": {}, "/taken": {}}
		c.Service.Mounts = []compose.Mount{{Anonymous: true, Target: "/mine"}, {Volume: "web-1", Target: "/taken"}, {Volume: "etc", Target: "/etc"}}
		first := d.up(c)
		expect.Equal(t, d.sh(first, "ls /srv/data; echo kept > /mine/file; echo kept > /var/lib/x/file; rm /etc/passwd"), "inside", "the image's content in its volume")

		// An update: the new container is created while the old one runs.
		c.Labels.Hash = "other"
		second := d.create(c)
		d.stop(first)
		d.start(second)
		d.delete(first)
		expect.Equal(t, d.sh(second, "cat /mine/file /var/lib/x/file; ls /srv/data; test ! -e /etc/passwd"), "kept\nkept\ninside", "after the update")

		c.Labels.Number = 2
		other := d.up(c)
		expect.Equal(t, d.sh(other, "ls /mine"), "", "another replica")
		d.delete(second)
		d.delete(other)
		// Three of each replica, and the named ones.
		expect.Equal(t, len(expect.Value(d.Volumes(d.ctx()))(t)), 8, "volumes kept")
	})
}

func TestVolumesWithAType(t *testing.T) {
	if out, err := exec.Command("mkfs.ext4", "-V").CombinedOutput(); err != nil {
		t.Skipf("needs mkfs.ext4: %v: %s", err, out)
	}
	onEach(t, func(t *testing.T, d *device) {
		dir := t.TempDir()
		d.write(filepath.Join(dir, "bound/file"), "bound")
		disk := filepath.Join(dir, "disk.img")
		run(t, "truncate", "--size=16M", disk)
		run(t, "mkfs.ext4", "-q", disk)
		loop := run(t, "losetup", "--find", "--show", disk)
		t.Cleanup(func() { run(t, "losetup", "--detach", loop) })

		c := d.config("web", "")
		c.Volumes = map[string]*compose.Volume{
			"memory": {Name: "memory", Type: "tmpfs", Device: "tmpfs", Options: []string{"size=1m", "uid=12", "noexec", "nofail"}},
			"bound":  {Name: "bound", Type: "none", Device: filepath.Join(dir, "bound"), Options: []string{"bind", "ro"}},
			"disk":   {Name: "disk", Type: "ext4", Device: loop, Options: []string{"noatime", "defaults"}},
		}
		c.Service.Mounts = []compose.Mount{
			{Volume: "bound", Target: "/bound"},
			{Volume: "disk", Target: "/disk"},
			{Volume: "memory", Target: "/memory"},
		}
		first := d.up(c)
		expect.Equal(t, d.sh(first, "cat /bound/file; echo on disk > /disk/file; echo > /memory/file; busybox stat -c %u /memory"), "bound12", "output")
		for command, want := range map[string]string{
			"echo > /bound/x": "Read-only", "dd if=/dev/zero of=/memory/large bs=1M count=2": "No space", "cp /bin/busybox /memory/b && /memory/b true": "",
		} {
			if out, code, err := d.trySh(first, command); code == 0 || err != nil || !strings.Contains(out, want) {
				t.Errorf("%s: %q, code %d, %v", command, out, code, err)
			}
		}

		// The definition of one changes while the old container runs.
		c.Volumes["memory"] = &compose.Volume{Name: "memory", Type: "tmpfs", Device: "tmpfs", Options: []string{"size=3m"}}
		c.Labels.Hash = "other"
		second := d.create(c)
		d.start(second)
		d.delete(first)
		d.sh(second, "test ! -e /memory/file && dd if=/dev/zero of=/memory/large bs=1M count=2 && cat /disk/file")
		expect.Equal(t, len(expect.Value(filepath.Glob(filepath.Join(d.run, "volumes/shop/*")))(t)), 3, "mounted volumes")

		// A reboot takes the mounts away.
		d.stop(second)
		for _, dir := range []string{"disk", "memory", "bound"} {
			found, _ := filepath.Glob(filepath.Join(d.run, "volumes/shop", dir+"~*"))
			if len(found) != 1 {
				t.Fatal(found)
			}
			check(t, syscall.Unmount(found[0], 0))
		}
		d.restart()
		d.start(second)
		expect.Equal(t, d.sh(second, "cat /disk/file; ls /memory"), "on disk", "after a reboot")
		d.delete(second)
		d.expectNothingLeft()
	})
}

func TestVolumesThatCannotBeMounted(t *testing.T) {
	d := onOne(t)
	tests := map[string]struct {
		volume compose.Volume
		want   string
	}{
		"a source that is missing": {compose.Volume{Type: "none", Device: "/nonesuch", Options: []string{"bind"}}, "/nonesuch: not found"},
		"a device that is missing": {compose.Volume{Type: "ext4", Device: "/dev/nonesuch"}, "no such file"},
		"a server without a name":  {compose.Volume{Type: "nfs", Device: ":/x", Options: []string{"addr=nas.invalid"}}, "cannot find the server"},
		"a password is not told":   {compose.Volume{Type: "tmpfs", Options: []string{"password=tellnobody"}}, "invalid argument"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := d.config("web", "")
			c.Labels.Hash = name
			test.volume.Name = "v"
			c.Volumes = map[string]*compose.Volume{"v": &test.volume}
			c.Service.Mounts = []compose.Mount{{Volume: "v", Target: "/v"}}
			_, err := d.tryCreate(c)
			expect.ErrorWith(t, err, test.want, "error")
			expect.Equal(t, strings.Contains(fmt.Sprint(err), "tellnobody"), false, "the password is told")
		})
	}
}

func TestExternalVolumes(t *testing.T) {
	d := onOne(t)
	owner := d.config("db", "")
	owner.Service.Mounts = []compose.Mount{{Volume: "data", Target: "/data"}, {Volume: "only_here", Target: "/only"}, {Volume: "memory", Target: "/memory"}}
	owner.Volumes = map[string]*compose.Volume{"memory": {Name: "memory", Type: "tmpfs"}}
	owned := d.up(owner)
	d.sh(owned, "echo data > /data/file; echo only > /only/file; echo memory > /memory/file")
	d.write(filepath.Join(d.state, "volumes/_/hand_made/file"), "made")

	c := d.config("reader", "")
	c.Labels.Project = "other"
	c.Volumes = make(map[string]*compose.Volume)
	for n, name := range []string{"shop_data", "hand_made", "shop_memory"} {
		c.Volumes[name] = &compose.Volume{Name: name, External: true}
		c.Service.Mounts = append(c.Service.Mounts, compose.Mount{Volume: name, Target: fmt.Sprintf("/%d", n)})
	}
	check(t, d.Check(d.ctx(), c))
	id := d.up(c)
	expect.Equal(t, d.sh(id, "cat /0/file /1/file /2/file"), "data\nmadememory", "output")
	expect.Error(t, d.RemoveVolume(d.ctx(), "shop", "data"), container.ErrInUse, "a volume that another project mounts")

	// Nobody finds the volume of another project by its bare name.
	c.Volumes["only_here"] = &compose.Volume{Name: "only_here", External: true}
	c.Service.Mounts = append(c.Service.Mounts, compose.Mount{Volume: "only_here", Target: "/x"})
	c.Labels.Hash = "other"
	err := d.Check(d.ctx(), c)
	expect.Error(t, err, container.ErrNotFound, "another project's volume")
	expect.ErrorWith(t, err, "service reader: mount at /x: external volume only_here", "another project's volume")
	expect.Error(t, expect.ErrorOf(d.tryCreate(c)), container.ErrNotFound, "error")
	d.delete(id)
	d.delete(owned)
}

func TestPrunedVolumes(t *testing.T) {
	d := onOne(t)
	c := d.config("web", "")
	c.Service.Mounts = []compose.Mount{{Volume: "data", Target: "/data"}}
	id := d.up(c)
	d.sh(id, "dd if=/dev/zero of=/data/file bs=64k count=4 && sync")
	d.write(filepath.Join(d.state, "volumes/old/.x.removing/file"), "left")
	d.write(filepath.Join(d.state, "volumes/old/logs/file"), "old")

	want := fmt.Sprintf("[{old logs []} {shop data [%s]}]", id)
	expect.Equal(t, fmt.Sprint(expect.Value(d.Volumes(d.ctx()))(t)), want, "volumes")
	if size, err := d.VolumeSize(d.ctx(), "shop", "data"); err != nil || size < 256<<10 || size > 1<<20 {
		t.Errorf("size %d, %v", size, err)
	}
	for _, name := range []string{"../volumes", "..", "", "a/b"} {
		expect.ErrorWith(t, d.RemoveVolume(d.ctx(), "old", name), "", "removing %q", name)
	}
	for range 2 {
		expect.OK(t, d.RemoveVolume(d.ctx(), "old", "logs"))
	}
	expect.Error(t, d.RemoveVolume(d.ctx(), "shop", "data"), container.ErrInUse, "a volume in use")
	d.delete(id)
	expect.OK(t, d.RemoveVolume(d.ctx(), "shop", "data"))
	expect.Error(t, expect.ErrorOf(os.Stat(d.VolumeDir("shop", "data"))), os.ErrNotExist, "the directory")
}

func TestSubpaths(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		volume := d.VolumeDir("shop", "data")
		d.write(filepath.Join(volume, "a/b/file"), "inside")
		d.write(filepath.Join(volume, "single"), "single")
		secret := t.TempDir()
		upwards := strings.Repeat("../", strings.Count(volume, "/")) + strings.TrimPrefix(secret, "/")
		d.write(filepath.Join(secret, "file"), "of the device")
		for _, link := range [][2]string{{secret, "absolute"}, {upwards, "relative"}, {"/a/b", "within"}} {
			check(t, os.Symlink(link[0], filepath.Join(volume, link[1])))
		}
		part := func(subpath string) container.Config {
			c := d.config("web", "")
			c.Labels.Hash = subpath
			c.Service.Mounts = []compose.Mount{{Volume: "data", Target: "/part", Subpath: subpath}}
			return c
		}
		for subpath, command := range map[string]string{"a/b": "cat /part/file", "within": "cat /part/file", "a/b/../b": "cat /part/file"} {
			id := d.up(part(subpath))
			expect.Equal(t, d.sh(id, command+"; echo more > /part/new"), "inside", "%s", subpath)
			d.stop(id)
			d.start(id) // again, as after a crash
			d.delete(id)
		}
		id := d.up(part("single"))
		expect.Equal(t, d.sh(id, "cat /part"), "single", "a file")
		for _, subpath := range []string{"absolute", "relative", upwards, "nonesuch"} {
			id := d.create(part(subpath))
			expect.Error(t, d.Start(d.ctx(), id), container.ErrNotFound, "%s", subpath)
			d.delete(id)
		}
	})
}

// A container keeps the certificate it was made with, as it keeps the rest of what
// it was told.
func TestOBS08ContainersGetTheCertificateOfTheCollector(t *testing.T) {
	d := onOne(t)
	d.certificate = filepath.Join(d.state, "collector.pem")
	d.restart()
	const look = "cat /etc/margolite/collector.pem 2>/dev/null; echo $OTEL_EXPORTER_OTLP_CERTIFICATE"
	for name, test := range map[string]struct {
		certificate string // empty: the file is missing
		environment map[string]string
		want        string
	}{
		"told":    {"PEM", nil, "PEM/etc/margolite/collector.pem"},
		"its own": {"PEM", map[string]string{"OTEL_EXPORTER_OTLP_CERTIFICATE": "/own"}, "PEM/own"},
		"missing": {"", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if test.certificate != "" {
				d.write(d.certificate, test.certificate)
			}
			c := d.config(strings.ReplaceAll(name, " ", ""), "")
			c.Service.Environment = test.environment
			id := d.up(c)
			_ = os.Remove(d.certificate)
			d.stop(id)
			d.start(id)
			if out, _, err := d.trySh(id, look); err != nil || strings.TrimSpace(out) != test.want {
				t.Errorf("got %q, %v", out, err)
			}
		})
	}
}

func TestConfigsAndSecrets(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		c := d.config("web", "")
		c.Service.Files = []compose.File{
			{Name: "settings", Target: "/settings", Mode: 0o444, Content: []byte("a: 1\n")},
			{Name: "password", Secret: true, Target: "/run/secrets/password", UID: 12, GID: 34, Mode: 0o400, Content: []byte("tellnobody")},
			{Name: "program", Target: "/opt/deep/program", Mode: 0o755, Content: []byte("#!/bin/sh\necho ran\n")},
		}
		id := d.up(c)
		look := "cat /settings; /opt/deep/program; cat /run/secrets/password; echo; busybox stat -c '%a %u %g' /settings /run/secrets/password"
		want := "a: 1\nran\ntellnobody\n444 0 0\n400 12 34"
		expect.Equal(t, d.sh(id, look), want, "output")
		if _, code, err := d.trySh(id, "echo x > /settings"); code == 0 || err != nil {
			t.Errorf("a config was written: %v", err)
		}

		kept := filepath.Join(d.state, "files/shop", id)
		for _, path := range []string{filepath.Join(d.state, "files"), kept, filepath.Join(d.run, "files")} { // others on the device get no further
			expect.Equal(t, expect.Value(os.Stat(path))(t).Mode().Perm(), 0o700, "mode of %s", path)
		}
		expect.Equal(t, len(expect.Value(os.ReadDir(kept))(t)), 3, "files kept")
		err := filepath.WalkDir(filepath.Join(d.run, "files"), func(path string, e fs.DirEntry, err error) error {
			expect.True(t, !e.Type().IsRegular(), "%s takes memory", path)
			return err
		})
		check(t, err)
		record := expect.Value(d.client.ContainerService().Get(d.ctx(), id))(t)
		if text := fmt.Sprintf("%v %s", record.Labels, record.Spec.GetValue()); strings.Contains(text, "tellnobody") {
			t.Error("the record has the secret")
		}
		for key, e := range record.Extensions {
			expect.Equal(t, bytes.Contains(e.GetValue(), []byte("tellnobody")), false, "extension %s has the secret", key)
		}

		// A reboot clears the run directory.
		d.stop(id)
		check(t, os.RemoveAll(filepath.Join(d.run, "files")))
		d.start(id)
		expect.Equal(t, d.sh(id, look), want, "after a reboot")
		d.delete(id)
		expect.Equal(t, expect.Value(filepath.Glob(filepath.Join(d.state, "files/*/*")))(t), nil, "left")
	})
}

// TestRootfsOfAPowerCut: a root file system whose directories did not get onto
// the medium before the power went, other than containerd's record of them, is
// made anew.
func TestRootfsOfAPowerCut(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		id := d.create(d.config("web", ""))
		mounts := expect.Value(d.client.SnapshotService("overlayfs").Mounts(d.ctx(), id))(t)
		lost := 0
		for _, option := range mounts[0].Options {
			if dir, ok := strings.CutPrefix(option, "upperdir="); ok {
				lost++
				check(t, os.RemoveAll(filepath.Dir(dir)))
			}
		}
		expect.Equal(t, lost, 1, "directories of %+v", mounts)
		d.start(id)
		expect.Equal(t, strings.TrimSpace(d.sh(id, "cat /srv/data/inside | wc -c")), "16", "bytes in the volume")
	})
}

// What no record tells of does not stay on the device, nor what a killed agent left half
// removed or half filled.
func TestLeftoversOfAKilledAgentGo(t *testing.T) {
	d := onOne(t)
	c := d.config("web", "")
	c.Service.Files = []compose.File{{Name: "s", Secret: true, Target: "/s", Mode: 0o400, Content: []byte("kept")}}
	kept, gone := d.create(c), container.ID("shop", "gone", 1, "")
	others := filepath.Join(filepath.Dir(d.LogPath(gone)), "syslog.log") // the directory may be anybody's
	volumes := filepath.Join(d.state, "volumes")
	stays := map[string]bool{
		d.LogPath(kept): true,
		others:          true,
		d.LogPath(gone): false,
		filepath.Join(d.state, "files/shop/0123/secret-0"):    false,
		filepath.Join(volumes, "old/.x.removing/file"):        false,
		filepath.Join(volumes, "shop/.data.filling/file"):     false,
		filepath.Join(volumes, "shop/data/file"):              true,
		filepath.Join(d.state, "files/shop", kept, "another"): true,
	}
	for path := range stays {
		d.write(path, "text")
	}
	service := d.client.LeasesService()
	for id, owner := range map[string]string{"own": d.state, "other": "/var/lib/other"} {
		expect.Value(service.Create(d.ctx(), leases.WithID(id), leases.WithExpiration(time.Hour), leases.WithLabel("margolite/creating", owner)))(t)
	}
	d.restart()
	check(t, d.RemoveLeftovers(d.ctx()))
	for path, want := range stays {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	expect.Error(t, expect.ErrorOf(os.Stat(filepath.Join(volumes, "old"))), fs.ErrNotExist, "the directory of a project without volumes")
	if left := expect.Value(service.List(d.ctx()))(t); len(left) != 1 || left[0].ID != "other" {
		t.Errorf("leases left: %v", left)
	}
	expect.OK(t, service.Delete(d.ctx(), leases.Lease{ID: "other"}))
	d.start(kept)
	expect.Equal(t, d.sh(kept, "cat /s"), "kept", "output")
	check(t, os.Remove(others))
}

// listless is a containerd that does not list containers while it has an error.
type listless struct {
	containerd.Client
	err error
}

func (l *listless) ContainerService() containers.Store {
	return listlessStore{l.Client.ContainerService(), l}
}

type listlessStore struct {
	containers.Store
	of *listless
}

func (s listlessStore) List(ctx context.Context, filters ...string) ([]containers.Container, error) {
	if s.of.err != nil {
		return nil, s.of.err
	}
	return s.Store.List(ctx, filters...)
}

// What was made before would be taken for what a killed agent left.
func TestNothingIsMadeBeforeLeftoversAreRemoved(t *testing.T) {
	d := onOne(t)
	asked := &listless{Client: d.client, err: errdefs.ErrUnavailable}
	d.client = asked
	d.restart()
	c := d.config("web", "")
	expect.Error(t, expect.ErrorOf(d.tryCreate(c)), errdefs.ErrUnavailable, "error")
	asked.err = nil
	d.up(c)
}

func TestBindMounts(t *testing.T) {
	d := onOne(t)
	dir := t.TempDir()
	d.write(filepath.Join(dir, "file"), "file")
	check(t, os.Mkdir(filepath.Join(dir, "below"), 0o755))
	run(t, "mount", "-t", "tmpfs", "tmpfs", filepath.Join(dir, "below"))
	t.Cleanup(func() { run(t, "umount", filepath.Join(dir, "below")) })
	d.write(filepath.Join(dir, "below/deep"), "deep")

	c := d.config("web", "")
	c.Service.Mounts = []compose.Mount{
		{Path: dir, Target: "/all", ReadOnly: true},
		{Path: dir, Target: "/top", NotBelow: true},
		{Path: dir, Target: "/fixed", ReadOnly: true, Below: compose.BelowReadOnly},
		{Path: dir, Target: "/above", ReadOnly: true, Below: compose.BelowWritable},
	}
	check(t, d.Check(d.ctx(), c))
	id := d.up(c)
	expect.Equal(t, d.sh(id, "cat /all/file; cat /all/below/deep; ls /top/below; touch /above/below/made"), "filedeep", "output")
	for _, path := range []string{"/all/x", "/all/below/x", "/fixed/x", "/fixed/below/x", "/above/x"} {
		if _, code, err := d.trySh(id, "touch "+path); code == 0 || err != nil {
			t.Errorf("%s was made (%v)", path, err)
		}
	}

	missing := d.config("web", "")
	missing.Service.Mounts = []compose.Mount{{Path: filepath.Join(dir, "nonesuch"), Target: "/x"}}
	err := d.Check(d.ctx(), missing)
	expect.Error(t, err, container.ErrNotFound, "missing directory")
	expect.ErrorWith(t, err, "service web: mount at /x", "missing directory")
	missing.Service.Mounts = nil
	missing.Service.Devices = []compose.Device{{Path: "/dev/nonesuch", Target: "/dev/x", Permissions: "rw"}}
	expect.ErrorWith(t, d.Check(d.ctx(), missing), "/dev/nonesuch", "error")
}

func TestJoinedNamespaces(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		owner := d.config("db", "")
		owner.Service.IPC = compose.Namespace{Mode: compose.ModeShareable}
		joiner := d.config("web", "")
		joiner.Service.IPC = compose.Namespace{Mode: compose.ModeService, Of: "db"}
		joiner.Service.PID = compose.Namespace{Mode: compose.ModeService, Of: "db"}
		joiner.Labels.Joins = []container.Join{{Kind: specs.IPCNamespace, Service: "db", Number: 1}, {Kind: specs.PIDNamespace, Service: "db", Number: 1}}

		first, second := d.create(owner), d.create(joiner)
		expect.Error(t, d.Start(d.ctx(), second), container.ErrNotRunning, "before the other one runs")
		for range 2 { // the second time the other process has another number
			d.start(first)
			d.start(second)
			d.sh(first, "echo shared > /dev/shm/x")
			expect.Equal(t, d.sh(second, "cat /dev/shm/x; busybox readlink /proc/self/ns/ipc; busybox readlink /proc/self/ns/pid"), "shared\n"+d.sh(first, "busybox readlink /proc/self/ns/ipc; busybox readlink /proc/self/ns/pid"), "output")
			d.stop(second)
			d.stop(first)
		}
		d.delete(second)
		d.delete(first)
	})
}

func TestOpenInputAndTerminal(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		ends := d.config("ends", "cat; sleep 0.2; echo end >> /data/ends")
		waits := d.config("waits", "echo start > /data/waits; cat; echo end >> /data/waits")
		waits.Service.StdinOpen = true
		terminal := d.config("terminal", "test -t 0 && test -t 1 && echo yes > /data/terminal; echo shown; cat; echo end >> /data/terminal")
		terminal.Service.TTY, terminal.Service.StdinOpen = true, true

		ids := make(map[string]string)
		for _, c := range []container.Config{ends, waits, terminal} {
			c.Service.Mounts = []compose.Mount{{Volume: "data", Target: "/data"}}
			ids[c.Service.Name] = d.up(c)
		}
		said := func(name string) string {
			text, _ := os.ReadFile(filepath.Join(d.VolumeDir("shop", "data"), name))
			return string(text)
		}
		expect.Eventually(d, "who has no input is at its end", func() bool { return said("ends") == "end\n" })
		expect.Eventually(d, "the others have started", func() bool { return said("waits") == "start\n" && said("terminal") == "yes\n" })
		d.restart() // the agent's end takes no input away
		for _, name := range []string{"waits", "terminal"} {
			expect.Equal(t, d.find(ids[name]).State, container.Running, "%s", name)
		}
		expect.Eventually(d, "the terminal's output is in its log", func() bool {
			var text strings.Builder
			err := log.Read(t.Context(), d.LogPath(ids["terminal"]), log.Options{}, &text)
			return err == nil && strings.Contains(text.String(), "shown")
		})
		for _, id := range ids {
			d.delete(id)
		}
	})
}

// Who closes one of its streams is heard on the other one, and to its last word.
func TestWhatIsPrintedOnOneStreamOutlivesTheOther(t *testing.T) {
	onEach(t, func(t *testing.T, d *device) {
		for name, script := range map[string]string{
			"error":  "echo first; exec >&-; sleep 0.5; echo second >&2; sleep 0.1; echo last >&2",
			"output": "echo first >&2; exec 2>&-; sleep 0.5; echo second; sleep 0.1; echo last",
		} {
			id := d.create(d.config(name, script))
			d.restart()
			for _, want := range []string{"first\nsecond\nlast\n", "first\nsecond\nlast\nfirst\nsecond\nlast\n"} {
				d.start(id)
				expect.Eventually(d, name+" has ended", func() bool { return d.find(id).State == container.Stopped })
				d.stop(id) // what was on its way has come
				var text strings.Builder
				check(t, log.Read(t.Context(), d.LogPath(id), log.Options{}, &text))
				expect.Equal(t, text.String(), want, "what %s printed", name)
			}
			d.delete(id)
		}
	})
}

func run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	expect.Require(t, err == nil, "%q: %v: %s", args, err, out)
	return strings.TrimSpace(string(out))
}
