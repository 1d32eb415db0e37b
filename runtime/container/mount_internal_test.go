package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
)

func TestMountOptionsInTheWordsOfTheKernel(t *testing.T) {
	tests := map[string]struct {
		options []string
		want    mountCall
	}{
		"none":                            {nil, mountCall{}},
		"flags and what is not one":       {[]string{"ro", "nosuid", "size=64m", "mode=0700"}, mountCall{flags: unix.MS_RDONLY | unix.MS_NOSUID, data: "size=64m,mode=0700"}},
		"the last word wins":              {[]string{"ro", "noexec", "rw", "exec", "nodev"}, mountCall{flags: unix.MS_NODEV}},
		"the last word wins, also to add": {[]string{"rw", "ro"}, mountCall{flags: unix.MS_RDONLY}},
		"a bind mount with all below it":  {[]string{"rbind", "ro"}, mountCall{flags: unix.MS_BIND | unix.MS_REC | unix.MS_RDONLY}},
		"propagation is another call":     {[]string{"bind", "rslave"}, mountCall{flags: unix.MS_BIND, propagation: unix.MS_SLAVE | unix.MS_REC}},
		"one propagation":                 {[]string{"rshared", "private"}, mountCall{propagation: unix.MS_PRIVATE}},
		"a value is no flag":              {[]string{"ro=1", "Ro", ""}, mountCall{data: "ro=1,Ro,"}},
		"times":                           {[]string{"noatime", "relatime", "atime", "nodiratime", "strictatime", "nostrictatime"}, mountCall{flags: unix.MS_RELATIME | unix.MS_NODIRATIME}},
		"writing":                         {[]string{"sync", "dirsync", "async", "mand", "nomand"}, mountCall{flags: unix.MS_DIRSYNC}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, parseMountOptions(test.options), test.want, "options")
		})
	}
}

func TestMountsOfTheKernel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30)) // 120 of which are more than a page
	check(t, os.MkdirAll(dir, 0o700))
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID, ""); err != nil { // overlays do not go on each other
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	mkdir := func(name string) string {
		path := filepath.Join(dir, name)
		check(t, os.MkdirAll(path, 0o755))
		return path
	}
	mounted := func(t *testing.T, at string, m mount.Mount) {
		t.Helper()
		check(t, mountAt(at, m))
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	}

	t.Run("an overlay of many layers", func(t *testing.T) {
		const layers = 120
		var lower []string
		for n := range layers {
			layer := mkdir("snapshots/" + strconv.Itoa(n) + "/fs")
			for _, name := range []string{"all", strconv.Itoa(n)} {
				check(t, os.WriteFile(filepath.Join(layer, name), []byte(strconv.Itoa(n)), 0o600))
			}
			lower = append(lower, layer)
		}
		options := []string{"lowerdir=" + strings.Join(lower, ":"), "upperdir=" + mkdir("upper"), "workdir=" + mkdir("work")}
		if len(options[0]) < 2*os.Getpagesize() {
			t.Fatalf("the options have %d bytes only", len(options[0]))
		}
		p := &paths{Options{RunDir: mkdir("run")}}
		err := p.withRootfs("many", []mount.Mount{{Type: "overlay", Source: "overlay", Options: options}}, func(root string) error {
			for name, want := range map[string]string{"all": "0", "0": "0", strconv.Itoa(layers - 1): strconv.Itoa(layers - 1)} {
				expect.Equal(t, string(expect.Value(os.ReadFile(filepath.Join(root, name)))(t)), want, "%s", name)
			}
			expect.Error(t, os.WriteFile(filepath.Join(root, "new"), nil, 0o600), unix.EROFS, "writing into it")
			return nil
		})
		expect.OK(t, err)
	})
	t.Run("a read-only bind mount", func(t *testing.T) {
		from, at := mkdir("from"), mkdir("at")
		mounted(t, at, mount.Mount{Type: "bind", Source: from, Options: []string{"rbind", "rw", "ro"}})
		expect.Error(t, os.WriteFile(filepath.Join(at, "x"), nil, 0o600), unix.EROFS, "writing into it")
		expect.Error(t, os.WriteFile(filepath.Join(from, "x"), nil, 0o600), nil, "writing where it is from")
		var fs unix.Statfs_t
		if err := unix.Statfs(at, &fs); err != nil || fs.Flags&unix.MS_NOSUID == 0 {
			t.Errorf("what it is of is nosuid, it is not: flags %x, %v", fs.Flags, err)
		}
	})
	t.Run("a bind mount that is restricted, of one that is read-only", func(t *testing.T) {
		first, second := mkdir("first"), mkdir("second")
		mounted(t, first, mount.Mount{Type: "bind", Source: mkdir("from"), Options: []string{"bind", "ro"}})
		mounted(t, second, mount.Mount{Type: "bind", Source: first, Options: []string{"bind", "noexec"}})
		var fs unix.Statfs_t
		if err := unix.Statfs(second, &fs); err != nil || fs.Flags&unix.MS_NOEXEC == 0 || fs.Flags&unix.MS_RDONLY == 0 {
			t.Errorf("its flags are %x, want noexec and ro (%v)", fs.Flags, err)
		}
	})
	t.Run("a file system in memory with its options", func(t *testing.T) {
		at := mkdir("memory")
		mounted(t, at, mount.Mount{Type: "tmpfs", Source: "tmpfs", Options: []string{"nodev", "size=64k", "mode=0711", "rprivate"}})
		expect.Equal(t, expect.Value(os.Stat(at))(t).Mode().Perm(), 0o711, "mode")
		expect.Error(t, os.WriteFile(filepath.Join(at, "big"), make([]byte, 128<<10), 0o600), unix.ENOSPC, "more than its size")
	})
	t.Run("what cannot be mounted", func(t *testing.T) {
		at := mkdir("nothing")
		for name, m := range map[string]mount.Mount{
			"no such type":          {Type: "nosuchfs", Source: "none", Options: []string{"password=hidden"}},
			"options beyond bounds": {Type: "overlay", Source: "overlay", Options: []string{"lowerdir=" + strings.Repeat("/x:", 2000) + "hidden"}},
			"an option of nobody":   {Type: "tmpfs", Source: "tmpfs", Options: []string{"password=hidden"}},
		} {
			err := mountAt(at, m)
			var errno unix.Errno
			if !errors.As(err, &errno) || strings.Contains(fmt.Sprint(err), "hidden") {
				t.Errorf("%s: the error is %v, want the kernel's without the options", name, err)
			}
			expect.Equal(t, expect.Value(isMounted(at))(t), false, "%s: mounted", name)
		}
	})
}

func FuzzMountOptions(f *testing.F) {
	f.Add("ro,lowerdir=/a/1/fs:/a/2/fs,upperdir=/u")
	f.Add("lowerdir=/a//1:/a/./2:/a/2/../3,rslave")
	f.Add("lowerdir=::,lowerdir=/,rw")
	f.Fuzz(func(t *testing.T, text string) {
		if call := parseMountOptions(strings.Split(text, ",")); len(call.data) > len(text) {
			t.Errorf("%q became %q", text, call.data)
		}
	})
}
