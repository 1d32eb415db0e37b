package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	confs "github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"
)

// openInRoot opens path for nothing but its place, as a process would whose root
// is the directory at root: no link leads out, whoever changes links meanwhile.
func openInRoot(root, path string) (*os.File, error) {
	dir, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), path, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // EAGAIN: something was renamed on the way
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			return openInRootSlowly(root, path)
		default:
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// openInRootSlowly is for kernels before 5.6: it resolves links by itself, and
// then looks where it came out.
func openInRootSlowly(root, path string) (*os.File, error) {
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, err
	}
	resolved, err := confs.RootPath(root, path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(resolved, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if at, err := os.Readlink(fdPath(f)); err != nil || at != resolved {
		return nil, errors.Join(fmt.Errorf("cannot open %s: the path to it was changed", path), err, f.Close())
	}
	return f, nil
}

// fdPath leads to what a file that this process has open is, whatever its name leads to now.
func fdPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// subpathDir is where the n-th part of a volume is bound for the start of a
// container. It lies among what New sweeps.
func (c *Containers) subpathDir(id string, n int) string {
	return c.mountDir(id + "." + strconv.Itoa(n))
}

// bindSubpaths binds the parts of volumes that a container mounts to fixed
// places, for runc to find; undo is for when it has. A container that has the
// whole volume may change it at any time.
func (c *Containers) bindSubpaths(id string, l Labels) (undo func(), err error) {
	undo = func() {
		for n := range l.Subpaths {
			if err := detach(c.subpathDir(id, n)); err != nil {
				c.o.Logger.Warn("part of a volume is still mounted", "container", id, "error", err)
			}
		}
	}
	for n, s := range l.Subpaths {
		v := l.Volumes[s.Volume]
		if err := bindBelow(c.subpathDir(id, n), c.volumeDir(l.Project, v), s.Path); err != nil {
			undo()
			return nil, fmt.Errorf("cannot mount %s of volume %s: %w", s.Path, v.Name, err)
		}
	}
	return undo, nil
}

// bindBelow binds what is at path within root to target.
func bindBelow(target, root, path string) error {
	if err := detach(target); err != nil { // of a start that was killed
		return err
	}
	f, err := openInRoot(root, path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: the volume does not contain it", ErrNotFound)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case info.IsDir():
		err = os.Mkdir(target, 0o700)
	case info.Mode().IsRegular():
		err = os.WriteFile(target, nil, 0o600)
	default:
		return errors.New("it is not a file or a directory")
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(fdPath(f), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("", target, "", unix.MS_PRIVATE|unix.MS_REC, "")
}
