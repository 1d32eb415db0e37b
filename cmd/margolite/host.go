package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/store"
)

const (
	// hostDirEnv is set only in margolite's container image. It names the host's directory that the
	// image's programs are copied to and run from.
	hostDirEnv = "MARGOLITE_HOST_DIR"

	// shimGroupEnv tells the shim its control group, see cmd/containerd-shim-runc-v2.
	shimGroupEnv = "MARGOLITE_SHIM_CGROUP"
	shimGroup    = "/margolite-shims"
)

var hostPrograms = []string{"containerd-shim-runc-v2", "margolite-init", "margolite"}

var errNoHost = errors.New("cannot enter the namespaces of the host from this container")

// leaveImage continues on the host if this program is in an image; it then returns only on failure.
func (c *cli) leaveImage(args []string) error {
	dir, ok := lookup(c.env, hostDirEnv)
	if !ok {
		return nil
	}
	if !onHost(dir) {
		return enterHost(dir, args, c.env)
	}
	// A container engine kills the control group of a container that ends.
	return os.Setenv(shimGroupEnv, shimGroup)
}

// enterHost replaces this process by the same program on the host, and returns only on failure. It
// keeps its process id, standard streams and control group, so that the container engine still
// starts, stops, limits and logs it. Everything else is the host's: files, mounts, network, runc.
//
// Workloads must outlive the container, and with it all files and mounts of the image. So the shim
// must be a file of the host and mount there; and paths in Compose files and in the configuration
// are the host's.
func enterHost(dir string, args, env []string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("invalid %s=%s: use an absolute path", hostDirEnv, dir)
	}
	programs, err := openPrograms()
	if err != nil {
		return err
	}
	// Never unlocked: the next program starts with this thread, which gets other namespaces.
	runtime.LockOSThread()
	if err := joinHost(); err != nil {
		return command.Hint(err, "start the container with --privileged and --pid=host, as root and without user namespaces")
	}
	if err := installPrograms(programs, dir); err != nil {
		return fmt.Errorf("cannot copy the programs of the image to the host: %w", err)
	}
	program := filepath.Join(dir, "margolite")
	err = fmt.Errorf("cannot run %s on the host: %w", program, unix.Exec(program, append([]string{program}, args...), env))
	if errors.Is(err, unix.EACCES) {
		return command.Hint(err, "set "+hostDirEnv+" to a directory on a file system that is not mounted noexec")
	}
	return err
}

// onHost reports that this program is already the one on the host. Commands that an engine runs in
// an agent's container join the agent's namespaces, but have the image's environment.
func onHost(dir string) bool {
	self, err := os.Executable()
	if err != nil {
		return false
	}
	own, err := os.Stat(filepath.Dir(self))
	if err != nil {
		return false
	}
	host, err := os.Stat(dir)
	return err == nil && os.SameFile(own, host)
}

// openPrograms opens the image's programs while its files are accessible.
func openPrograms() (map[string]*os.File, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find the programs of the image: %w", err)
	}
	programs := map[string]*os.File{}
	for _, name := range hostPrograms {
		if programs[name], err = os.Open(filepath.Join(filepath.Dir(self), name)); err != nil {
			return nil, fmt.Errorf("the image is incomplete: %w", err)
		}
	}
	return programs, nil
}

func joinHost() error {
	own, err := os.Stat("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	host, err := os.Stat("/proc/1/ns/mnt")
	if err != nil {
		return fmt.Errorf("%w: %w", errNoHost, err)
	}
	if os.SameFile(own, host) {
		return fmt.Errorf("%w: process 1 is in this container", errNoHost)
	}
	// A thread that shares its root directory may not enter a mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("%w: %w", errNoHost, err)
	}
	// Mounts last: the others are found through this container's /proc.
	for _, kind := range []string{"cgroup", "ipc", "uts", "net", "mnt"} {
		path := "/proc/1/ns/" + kind
		ns, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) && kind != "mnt" {
			continue // this kernel lacks the kind
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errNoHost, err)
		}
		err = unix.Setns(int(ns.Fd()), 0)
		_ = ns.Close()
		if err != nil {
			return fmt.Errorf("%w: %s: %w", errNoHost, path, err)
		}
	}
	return nil
}

// installPrograms writes programs atomically and durably. Two containers may start at once.
func installPrograms(programs map[string]*os.File, dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil { // like the state directory, its usual parent
		return err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("cannot lock %s: %w", dir, err)
	}
	for _, name := range hostPrograms {
		path := filepath.Join(dir, name)
		if sameContent(path, programs[name]) {
			continue
		}
		content := io.NewSectionReader(programs[name], 0, math.MaxInt64)
		if err := store.ReplaceFile(path, 0o755, content); err != nil { // it may be running
			return fmt.Errorf("cannot write %s: %w", path, err)
		}
	}
	return lock.Sync()
}

// sameContent compares the file at path with the wanted one. An unreadable file differs.
func sameContent(path string, wanted *os.File) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	whole := io.NewSectionReader(wanted, 0, math.MaxInt64)
	for a, b := make([]byte, 64<<10), make([]byte, 64<<10); ; {
		n, err := io.ReadFull(file, a)
		m, wantedErr := io.ReadFull(whole, b)
		if err != wantedErr || !bytes.Equal(a[:n], b[:m]) {
			return false
		}
		if err != nil {
			return err == io.EOF || err == io.ErrUnexpectedEOF
		}
	}
}
