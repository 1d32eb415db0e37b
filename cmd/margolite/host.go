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
	// hostDirEnv is set in the container image of margolite and nowhere else. It names the directory of the
	// host that the programs of the image are copied to and run from.
	hostDirEnv = "MARGOLITE_HOST_DIR"

	// shimGroupEnv tells the shim which control group to run in, see cmd/containerd-shim-runc-v2.
	shimGroupEnv = "MARGOLITE_SHIM_CGROUP"
	shimGroup    = "/margolite-shims"
)

// hostPrograms are the programs of the image. They lie beside each other.
var hostPrograms = []string{"containerd-shim-runc-v2", "margolite-init", "margolite"}

// errNoHost says that the container engine keeps the host out of reach.
var errNoHost = errors.New("cannot enter the namespaces of the host from this container")

// leaveImage runs the command on the host where this program is that of a container image: then it returns only if
// that fails.
func (c *cli) leaveImage(args []string) error {
	dir, ok := lookup(c.env, hostDirEnv)
	if !ok {
		return nil
	}
	if !onHost(dir) {
		return enterHost(dir, args, c.env)
	}
	// A container engine kills what is in the control group of a container that ends.
	return os.Setenv(shimGroupEnv, shimGroup)
}

// enterHost replaces this process by the same program on the host, and returns only if that fails. It keeps its process
// id, standard streams and control group, so that the container engine still starts, stops, limits and logs it.
// Everything else is the host's: files, mounts, network, runc.
//
// Workloads have to outlive the container, and with it every file and mount of the image. So the shim has to be
// a file of the host and to mount there; and paths in Compose files and in the configuration mean the host's.
func enterHost(dir string, args, env []string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("invalid %s=%s: use an absolute path", hostDirEnv, dir)
	}
	programs, err := openPrograms()
	if err != nil {
		return err
	}
	// Never unlocked: this thread gets other namespaces than the rest of the process, and the next program begins with it.
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

// onHost says that this program is the one on the host already. What an engine runs in the container of an agent
// joins the namespaces of the agent, and has the environment of the image.
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

// openPrograms opens the programs of the image while its files are in reach.
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
	// Threads of a process share a root directory, and nobody who shares one may enter a mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("%w: %w", errNoHost, err)
	}
	// Mounts last: the others are found by the /proc of this container.
	for _, kind := range []string{"cgroup", "ipc", "uts", "net", "mnt"} {
		path := "/proc/1/ns/" + kind
		ns, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) && kind != "mnt" {
			continue // this kernel has none of the kind
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

// installPrograms writes programs into dir, each at once and safe from a power cut. Two containers may start at the same time.
func installPrograms(programs map[string]*os.File, dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil { // as the state directory, which it usually is in
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

// sameContent says whether the file at path has the content of wanted. One that cannot be
// read has not, and is written again.
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
