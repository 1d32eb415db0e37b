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
	return openResolved(int(dir.Fd()), path, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS,
		func() (*os.File, error) { return openInRootSlowly(root, path) })
}

// openResolved opens path for nothing but its place, from the directory dir on. slowly
// does so on kernels before 5.6.
func openResolved(dir int, path string, resolve uint64, slowly func() (*os.File, error)) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve}
	for {
		fd, err := unix.Openat2(dir, path, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // EAGAIN: something was renamed on the way
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			return slowly()
		default:
			return nil, &fs.PathError{Op: "open", Path: filepath.Clean(path), Err: err}
		}
	}
}

// openInRootSlowly resolves links by itself, and opens what is there by then without any.
func openInRootSlowly(root, path string) (*os.File, error) {
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, err
	}
	resolved, err := confs.RootPath(root, path)
	if err != nil {
		return nil, err
	}
	return openWithoutLinksSlowly(resolved)
}

// fdPath leads to what a file that this process has open is, whatever its name leads to now.
func fdPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// bindForStart binds to fixed places, for runc to find, what a container mounts that
// somebody else may replace: parts of volumes, and paths of the device. undo is for when
// runc has found them. What is in the way of each is looked at once: whoever changes it
// meanwhile changes nothing.
func (p *paths) bindForStart(id string, l Labels) (undo func(), err error) {
	var places []string
	undo = func() {
		for _, place := range places {
			if err := detach(place); err != nil {
				p.o.Logger.Warn("source of a mount is still mounted", "container", id, "error", err)
			}
		}
	}
	bind := func(place string, open func() (*os.File, error)) error {
		places = append(places, place)
		if err := detach(place); err != nil { // of a start that was killed
			return err
		}
		f, err := open()
		if f == nil || err != nil {
			return err
		}
		defer f.Close()
		return bindTo(place, f)
	}
	for n, part := range l.Subpaths {
		v := l.Volumes[part.Volume]
		err := bind(p.subpathDir(id, n), func() (*os.File, error) { return openSubpath(p.volumeDir(l.Project, v), part.Path) })
		if err != nil {
			undo()
			return nil, fmt.Errorf("cannot mount %s of volume %s: %w", part.Path, v.Name, err)
		}
	}
	for n, source := range l.Sources {
		if now := Real(source.Path); now != source.Real {
			p.o.Logger.Warn("a mount still shows where its path led when it was allowed",
				"container", id, "path", source.Path, "then", source.Real, "now", now)
		}
		if err := bind(p.sourceDir(id, n), source.open); err != nil {
			undo()
			return nil, fmt.Errorf("cannot mount %s: %w", source.Path, err)
		}
	}
	return undo, nil
}

// openSubpath opens a part of a volume. A container that has the whole volume may
// change it at any time.
func openSubpath(volume, path string) (*os.File, error) {
	f, err := openInRoot(volume, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: the volume does not contain it", ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		err = errors.New("it is not a file or a directory")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
