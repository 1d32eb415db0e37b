package container_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/test/expect"
)

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\n#www:x:0:0::/:\nbroken line\nwww:x:33:33::/:/bin/false\nbad:x:notanumber:1::/:\n1000:x:500:500::/:/bin/sh\n"
	group  = "root:x:0:root\nwww:x:33:\naudio:x:29:www,other\nvideo:x:44:other,www\ndup:x:29:www\nempty:x:99:\n"
)

// image is a directory with the two files; "" leaves one out.
func image(t testing.TB, passwd, group string) string {
	root := t.TempDir()
	check(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	for name, text := range map[string]string{"passwd": passwd, "group": group} {
		if text == "" {
			continue
		}
		check(t, os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644))
	}
	return root
}

func TestLookupUser(t *testing.T) {
	tests := []struct {
		name string
		spec string
		want specs.User
		err  string
	}{
		{name: "nobody is named: root", spec: "", want: specs.User{AdditionalGids: []uint32{0}}},
		{name: "a name", spec: "www", want: specs.User{UID: 33, GID: 33, AdditionalGids: []uint32{29, 44}}},
		{name: "a number that has a name", spec: "33", want: specs.User{UID: 33, GID: 33, AdditionalGids: []uint32{29, 44}}},
		{name: "a number without a name gets group 0", spec: "4711", want: specs.User{UID: 4711}},
		{name: "a number and a number", spec: "4711:4712", want: specs.User{UID: 4711, GID: 4712}},
		{name: "a name and a name: no supplementary groups", spec: "www:video", want: specs.User{UID: 33, GID: 44}},
		{name: "a group alone", spec: ":video", want: specs.User{GID: 44}},
		{name: "a number is never a name", spec: "1000", want: specs.User{UID: 1000}},
		{name: "an unknown name", spec: "nobody", err: "passwd file"},
		{name: "an account without a number", spec: "bad", err: "passwd file"},
		{name: "a comment", spec: "#www", err: "passwd file"},
		{name: "more than a user and a group", spec: "www:video:audio", err: "group file"},
		{name: "an unknown group", spec: "www:nogroup", err: "group file"},
		{name: "a colon without group", spec: "www:", err: "missing"},
		{name: "a number that means no change", spec: "4294967295", err: "range"},
		{name: "a negative number", spec: "-1", err: "range"},
	}
	root := image(t, passwd, group)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := container.LookupUser(root, test.spec)
			if test.err != "" {
				expect.ErrorWith(t, err, test.err, "error")
				return
			}
			check(t, err)
			expect.Equal(t, got, test.want, "user")
		})
	}
}

func TestLookupUserInAnImageWithoutAccounts(t *testing.T) {
	root := t.TempDir()
	if u, err := container.LookupUser(root, "1000:1000"); err != nil || u.UID != 1000 || u.GID != 1000 {
		t.Errorf("got %+v, %v", u, err)
	}
	expect.ErrorWith(t, expect.ErrorOf(container.LookupUser(root, "www")), "", "a name")
}

func TestLookupUserInHostileImages(t *testing.T) {
	etc := func(prepare func(dir string) error) string {
		root := image(t, "", "")
		check(t, prepare(filepath.Join(root, "etc")))
		return root
	}
	tests := map[string]struct {
		root string
		err  string
	}{
		"a pipe instead of a file": {etc(func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "passwd"), 0o644) }), "regular file"},
		"a directory":              {etc(func(dir string) error { return os.Mkdir(filepath.Join(dir, "passwd"), 0o755) }), "regular file"},
		"a file without end": {etc(func(dir string) error {
			if err := os.WriteFile(filepath.Join(dir, "passwd"), nil, 0o644); err != nil {
				return err
			}
			return os.Truncate(filepath.Join(dir, "passwd"), 1<<40)
		}), "more than"},
		"a line without end":            {image(t, "www:x:33:33:"+strings.Repeat("x", 1<<19)+"::\n", ""), "passwd file"},
		"a link to the host's accounts": {etc(func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "passwd")) }), ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := expect.Answer(t, "there is an answer", func() error { return expect.ErrorOf(container.LookupUser(test.root, "www")) })
			expect.ErrorWith(t, err, test.err, "error")
		})
	}
}

func TestFurtherGroups(t *testing.T) {
	root := image(t, passwd, group)
	want := specs.User{UID: 33, GID: 33, AdditionalGids: []uint32{29, 44, 99, 4711}}
	expect.Equal(t, expect.Value(container.LookupUser(root, "www", "empty", "4711", "audio", "29"))(t), want, "user")
	for _, name := range []string{"dialout", "-1", "4294967295"} {
		expect.ErrorWith(t, expect.ErrorOf(container.LookupUser(root, "www", name)), "group_add", "%q", name)
	}
	expect.Equal(t, expect.Value(container.LookupUser(t.TempDir(), "33", "20"))(t).AdditionalGids, []uint32{20}, "groups in an image without any")
}

func FuzzLookupUser(f *testing.F) {
	for _, spec := range []string{"", "www", "33", "www:video", ":1", "::"} {
		f.Add(spec, passwd, group)
	}
	f.Fuzz(func(t *testing.T, spec, passwd, group string) {
		u, err := container.LookupUser(image(t, passwd, group), spec)
		expect.True(t, err != nil || u.UID != 1<<32-1 && u.GID != 1<<32-1, "got %+v, which means no change", u)
	})
}

// A container may hold a lease on its files, for which the kernel delays whoever opens them by 45 s.
func TestLookupUserOfALeasedFile(t *testing.T) {
	root := image(t, passwd, group)
	held := expect.Value(os.OpenFile(filepath.Join(root, "etc", "passwd"), os.O_RDWR, 0))(t)
	defer held.Close()
	if _, err := unix.FcntlInt(held.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("needs leases on files:", err)
	}
	expect.Error(t, expect.ErrorOf(container.LookupUser(root, "www")), unix.EAGAIN, "the error")
}
