package container

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
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
			expect.Error(t, err, want, "%s: %s", name, path)
			if err == nil {
				f.Close()
			}
		}
	}
}
