package container

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
)

// volumeRig is an image with a directory, and an empty volume.
func volumeRig(t *testing.T) (root, dir string) {
	t.Helper()
	root = makeTree(t, map[string]string{"srv/content/a": "A", "srv/content/sub/b": "B", "file": "F", "elsewhere/c": "C"})
	dir = filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, link := range [][2]string{{"/elsewhere", "absolute"}, {"../../../../elsewhere", "srv/up"}, {"/etc", "out"}} {
		if err := os.Symlink(link[0], filepath.Join(root, link[1])); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(filepath.Join(root, "srv/content"), 1000, 1001); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(root, "srv/content"), 0o770); err != nil {
		t.Fatal(err)
	}
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
				if err := os.WriteFile(filepath.Join(dir, test.mine), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := fillVolume(dir, root, test.target, false); err != nil {
				t.Fatal(err)
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range entries {
				got = append(got, e.Name())
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("volume has %q, want %q", got, test.want)
			}
		})
	}
}

func TestAFilledVolumeIsAsInTheImage(t *testing.T) {
	root, dir := volumeRig(t)
	if err := fillVolume(dir, root, "/srv/content", false); err != nil {
		t.Fatal(err)
	}
	if beside, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(beside) != 1 {
		t.Errorf("beside the volume is %v, %v", beside, err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "sub/b")); string(text) != "B" {
		t.Errorf("got %q, %v", text, err)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o770 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if owner := info.Sys().(*syscall.Stat_t); os.Geteuid() == 0 && (owner.Uid != 1000 || owner.Gid != 1001) {
		t.Errorf("owner %d:%d", owner.Uid, owner.Gid)
	}
}

// Whether a volume is to be filled takes no more for one with many files.
func TestAVolumeWithManyFilesIsNotRead(t *testing.T) {
	dir := t.TempDir()
	for n := range 5000 {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(n)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(3, func() {
		if empty, err := isEmpty(dir); empty || err != nil {
			t.Error(empty, err)
		}
	}); n > 100 {
		t.Errorf("it takes %.0f allocations", n)
	}
}
