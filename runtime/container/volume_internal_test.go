package container

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// volumeRig is an image with a directory, and an empty volume.
func volumeRig(t *testing.T) (root, dir string) {
	t.Helper()
	root = makeTree(t, map[string]string{"srv/content/a": "A", "srv/content/sub/b": "B", "file": "F", "elsewhere/c": "C"})
	dir = filepath.Join(t.TempDir(), "data")
	check(t, os.Mkdir(dir, 0o755))
	for _, link := range [][2]string{{"/elsewhere", "absolute"}, {"../../../../elsewhere", "srv/up"}, {"/etc", "out"}} {
		check(t, os.Symlink(link[0], filepath.Join(root, link[1])))
	}
	if os.Geteuid() == 0 {
		check(t, os.Chown(filepath.Join(root, "srv/content"), 1000, 1001))
	}
	check(t, os.Chmod(filepath.Join(root, "srv/content"), 0o770))
	return root, dir
}

func TestFillVolume(t *testing.T) {
	for name, test := range map[string]struct {
		target string
		mine   string // in the volume already
		want   []string
	}{
		"content comes along":                             {"/srv/content", "", []string{"a", "sub"}},
		"a link within the image is followed":             {"/absolute", "", []string{"c"}},
		"a link that climbs out ends at the image's root": {"/srv/up", "", []string{"c"}},
		"a link to the host's files":                      {"/out", "", nil},
		"an image without that path":                      {"/nowhere", "", nil},
		"an image with a file there":                      {"/file", "", nil},
		"a volume with content":                           {"/srv/content", "mine", []string{"mine"}},
	} {
		t.Run(name, func(t *testing.T) {
			root, dir := volumeRig(t)
			if test.mine != "" {
				check(t, os.WriteFile(filepath.Join(dir, test.mine), nil, 0o600))
			}
			check(t, fillVolume(dir, root, test.target, false))
			var got []string
			for _, e := range expect.Value(os.ReadDir(dir))(t) {
				got = append(got, e.Name())
			}
			expect.Equal(t, got, test.want, "volume")
		})
	}
}

func TestAFilledVolumeIsAsInTheImage(t *testing.T) {
	root, dir := volumeRig(t)
	check(t, fillVolume(dir, root, "/srv/content", false))
	expect.Equal(t, len(expect.Value(os.ReadDir(filepath.Dir(dir)))(t)), 1, "directories beside the volume")
	expect.Equal(t, string(expect.Value(os.ReadFile(filepath.Join(dir, "sub/b")))(t)), "B", "file of the image")
	info := expect.Value(os.Stat(dir))(t)
	expect.Equal(t, info.Mode().Perm(), 0o770, "mode")
	if owner := info.Sys().(*syscall.Stat_t); os.Geteuid() == 0 && (owner.Uid != 1000 || owner.Gid != 1001) {
		t.Errorf("owner %d:%d", owner.Uid, owner.Gid)
	}
}

// Whether a volume is to be filled takes no more for one with many files.
func TestAVolumeWithManyFilesIsNotRead(t *testing.T) {
	dir := t.TempDir()
	for n := range 5000 {
		check(t, os.WriteFile(filepath.Join(dir, strconv.Itoa(n)), nil, 0o644))
	}
	if n := testing.AllocsPerRun(3, func() {
		expect.Equal(t, expect.Value(isEmpty(dir))(t), false, "empty")
	}); n > 100 {
		t.Errorf("it takes %.0f allocations", n)
	}
}
