//go:build packages

package packages

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

// release of Debian that is installed.
const release = "bookworm"

// archive is where the base system is kept. To have a newer one, delete it.
func archive() (string, error) {
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "margolite-test", "debootstrap-"+release+"-"+runtime.GOARCH+".tar"), err
}

// prepareArchive makes the base system where there is none yet. It needs the
// network of the machine.
func prepareArchive() error {
	file, err := archive()
	if err != nil {
		return err
	}
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	dir := file + ".dir"
	defer os.RemoveAll(dir)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	out, err := exec.Command("debootstrap", "--variant=minbase", "--include=runc", release, dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot install Debian: %w\n%s", err, out)
	}
	out, err = exec.Command("tar", "-C", dir, "-cf", file+".new", ".").CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot pack Debian: %w\n%s", err, out)
	}
	return os.Rename(file+".new", file)
}

// system is a Debian below a directory, without an init. It has the network, the
// processes and the control groups of the test.
type system struct {
	t    *testing.T
	root string
}

func newSystem(t *testing.T) *system {
	t.Helper()
	file := expect.Value(archive())(t)
	dir := expect.Value(os.MkdirTemp("", "margolite-packages-"))(t)
	s := &system{t, filepath.Join(dir, "root")}
	t.Cleanup(func() {
		plant.UnmountBelow(dir) // what is left makes the removal fail
		expect.OK(t, os.RemoveAll(dir))
	})
	expect.Check(t, os.Mkdir(s.root, 0o755))
	if out, err := exec.Command("tar", "-C", s.root, "-xpf", file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// runc changes the root of containers, which has to be a mount.
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{s.root, "", "", unix.MS_BIND},
		{"proc", "proc", "proc", 0},
		{"/sys", "sys", "", unix.MS_BIND | unix.MS_REC},
		{"/dev", "dev", "", unix.MS_BIND | unix.MS_REC},
		{"tmpfs", "run", "tmpfs", 0},
	} {
		if err := unix.Mount(m.source, filepath.Join(s.root, m.target), m.kind, m.flags, ""); err != nil {
			t.Fatalf("cannot mount %s: %v", m.target, err)
		}
	}
	return s
}

// command runs in the system, with what a service has of an environment.
func (s *system) command(args ...string) *exec.Cmd {
	cmd := exec.Command("chroot", append([]string{s.root}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"}
	return cmd
}

// run fails the test if the command fails.
func (s *system) run(args ...string) string {
	s.t.Helper()
	out, err := s.command(args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// put writes a file of the system.
func (s *system) put(path string, data []byte) {
	s.t.Helper()
	expect.Check(s.t, os.WriteFile(filepath.Join(s.root, path), data, 0o600))
}

// install installs a package, or upgrades to it.
func (s *system) install(deb string) {
	s.t.Helper()
	if out, err := exec.Command("cp", deb, filepath.Join(s.root, "tmp/margolite.deb")).CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	s.run("dpkg", "-i", "/tmp/margolite.deb")
	s.run("rm", "/tmp/margolite.deb")
}

// has tells whether there is such a path.
func (s *system) has(path string) bool {
	s.t.Helper()
	_, err := os.Lstat(filepath.Join(s.root, path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatal(err)
	}
	return err == nil
}

// files are the paths of the system, without what is mounted there and what dpkg
// notes for itself.
func (s *system) files() []string {
	s.t.Helper()
	var all []string
	err := filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := strings.TrimPrefix(path, s.root); name {
		case "/proc", "/sys", "/dev", "/var/lib/dpkg", "/var/log/dpkg.log", "/var/cache":
			if d.IsDir() {
				return fs.SkipDir
			}
		default:
			all = append(all, name)
		}
		return nil
	})
	expect.Check(s.t, err)
	return all
}
