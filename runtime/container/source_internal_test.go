package container

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Kernels before 5.6 are told apart by nothing but what they say.
func TestOpenWithoutLinksOnAnyKernel(t *testing.T) {
	dir := Real(t.TempDir())
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "a/b"), 0o755), os.WriteFile(filepath.Join(dir, "a/file"), nil, 0o600),
		os.Symlink("a", filepath.Join(dir, "link")), os.Symlink("/etc/passwd", filepath.Join(dir, "a/last")),
	} {
		check(t, err)
	}
	for name, open := range map[string]func(string) (*os.File, error){"openat2": openWithoutLinks, "slowly": openWithoutLinksSlowly} {
		for path, want := range map[string]error{
			"a": nil, "a/b/.": nil, "a/file": nil, "a/file/.": unix.ENOTDIR, "a/none": os.ErrNotExist,
			"link/b": unix.ELOOP, "link/.": unix.ELOOP, "a/last": unix.ELOOP,
		} {
			f, err := open(dir + "/" + path)
			if !errors.Is(err, want) {
				t.Errorf("%s: %s: %v, want %v", name, path, err, want)
			}
			if err == nil {
				f.Close()
			}
		}
	}
}
