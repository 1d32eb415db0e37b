package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	confs "github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/compose"
)

// Source is a path of the device that a container mounts. A container may write where others,
// or it itself after a restart, mount from: a link it makes there must not lead to what
// was not allowed. So the mount uses the path that was judged, and follows no link.
type Source struct {
	Path   string `json:"path"`             // as in the Compose file
	Real   string `json:"real"`             // where it led when it was judged
	Create bool   `json:"create,omitempty"` // make a missing directory
}

// Real resolves the links in a path, as far as it exists; a link to nothing is resolved too,
// as its target may appear later. Paths in /proc and /sys stay as they are: links in /proc
// have no real name, and those in /sys change with the hardware.
func Real(path string) string {
	done, rest := "/", strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch {
		case name == "" || name == ".":
			continue
		case name == "..":
			done = filepath.Dir(done)
			continue
		case done == "/" && isKernels(name):
			return filepath.Join("/", name, filepath.Join("/", filepath.Join(rest...)))
		}
		next := filepath.Join(done, name)
		target, err := os.Readlink(next)
		if err != nil {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return filepath.Clean(path) // the kernel refuses it
		}
		if filepath.IsAbs(target) {
			done = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return done
}

// maxLinks is the kernel's limit of links in a path.
const maxLinks = 40

func isKernels(name string) bool { return name == "proc" || name == "sys" }

// FindSources sets where the project's device paths lead: where known says, else now.
func FindSources(p *compose.Project, known map[string]string) {
	eachSource(p, func(path string, real *string) {
		if found := known[path]; found != "" {
			*real = found
		} else if *real == "" {
			*real = Real(path)
		}
	})
}

// Sources returns what FindSources set, except in /dev, where links may change.
func Sources(p *compose.Project) map[string]string {
	found := make(map[string]string)
	eachSource(p, func(path string, real *string) {
		if !inDev(path) {
			found[path] = *real
		}
	})
	return found
}

func eachSource(p *compose.Project, do func(path string, real *string)) {
	each := func(path string, real *string) {
		if filepath.IsAbs(path) {
			do(path, real)
		}
	}
	for _, s := range p.Services {
		for n := range s.Mounts {
			each(s.Mounts[n].Path, &s.Mounts[n].Real)
		}
		for n := range s.Devices {
			each(s.Devices[n].Path, &s.Devices[n].Real)
		}
	}
	for _, v := range p.Volumes {
		each(v.Device, &v.Real)
	}
}

func realOf(m compose.Mount) string {
	if m.Real != "" {
		return m.Real
	}
	return Real(m.Path)
}

// isBound reports whether a path is bound to a place of ours for the start, for runc to find. Not
// if mounts propagate, nor in the kernel's file systems: there a short race remains.
func isBound(m compose.Mount) bool { return m.Propagation == "" && !isDirect(realOf(m)) }

func isDirect(real string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(real, "/"), "/")
	return real == "/" || isKernels(first)
}

// open opens the path to mount; nil: runc mounts it by its name.
func (s Source) open() (*os.File, error) {
	if isDirect(s.Real) {
		return nil, nil
	}
	f, err := openReal(s.Real)
	if errors.Is(err, fs.ErrNotExist) && s.Create && Real(s.Path) == s.Real {
		if err := makeReal(s.Real); err != nil {
			return nil, err
		}
		f, err = openReal(s.Real)
	}
	return f, err
}

// bindTo creates target and binds the open file there.
func bindTo(target string, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.Mkdir(target, 0o700)
	} else {
		err = os.WriteFile(target, nil, 0o600)
	}
	if err != nil {
		return err
	}
	// Private before it is attached: unmounting it must leave mounts below it on the device.
	tree, err := unix.OpenTree(int(f.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err == nil {
		defer unix.Close(tree)
		err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
	}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // before Linux 5.12
		if err := unix.Mount(fdPath(f), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
		return makePrivateMount(target)
	}
	if err != nil {
		return err
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// makePrivateMount stops propagation of mount events to and from a mount and those below it.
func makePrivateMount(at string) error {
	return unix.Mount("", at, "", unix.MS_PRIVATE|unix.MS_REC, "")
}

// openReal opens a location (O_PATH) without links. It triggers mounts on demand.
func openReal(path string) (*os.File, error) {
	f, err := openWithoutLinks(path + "/.")
	if errors.Is(err, unix.ENOTDIR) {
		f, err = openWithoutLinks(path)
	}
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%w: it leads to %s now", ErrMoved, Real(path))
	}
	return f, err
}

func openWithoutLinks(path string) (*os.File, error) {
	return openResolved(unix.AT_FDCWD, path, unix.RESOLVE_NO_SYMLINKS, func() (*os.File, error) { return openWithoutLinksSlowly(path) })
}

// openWithoutLinksSlowly checks where the path led after opening it.
func openWithoutLinksSlowly(path string) (*os.File, error) {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if at, err := os.Readlink(fdPath(f)); err != nil || at != filepath.Clean(path) {
		return nil, errors.Join(&fs.PathError{Op: "open", Path: filepath.Clean(path), Err: unix.ELOOP}, err, f.Close())
	}
	return f, nil
}

// makeReal makes a directory and its parents without following a link.
func makeReal(path string) error {
	var missing []string
	at := path
	f, err := openReal(at)
	for errors.Is(err, fs.ErrNotExist) {
		missing = append(missing, filepath.Base(at))
		at = filepath.Dir(at)
		f, err = openReal(at)
	}
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	for _, name := range slices.Backward(missing) {
		if err := unix.Mkdirat(int(f.Fd()), name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("cannot create the directory of a bind mount: %w", err)
		}
		at = filepath.Join(at, name)
		fd, err := unix.Openat(int(f.Fd()), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("cannot create the directory of a bind mount: %s: %w", at, err)
		}
		f.Close()
		f = os.NewFile(uintptr(fd), at)
	}
	return nil
}

// checkLink refuses a device path that leads elsewhere than when it was judged. Links in /dev
// change with the hardware; none of them may lead out of /dev.
func checkLink(path, real string) error {
	if real == "" {
		return nil
	}
	now := Real(path)
	if now == real || inDev(path) && inDev(now) {
		return nil
	}
	return fmt.Errorf("cannot use %s: %w: it now leads to %s, but led to %s when it was allowed", path, ErrMoved, now, real)
}

func inDev(path string) bool { return strings.HasPrefix(path, "/dev/") }

// openInRoot opens a location as if root were the root directory: no link leads out.
func openInRoot(root, path string) (*os.File, error) {
	dir, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return openResolved(int(dir.Fd()), path, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS,
		func() (*os.File, error) { return openInRootSlowly(root, path) })
}

// openResolved opens a location from the directory dir on; slowly: before Linux 5.6.
func openResolved(dir int, path string, resolve uint64, slowly func() (*os.File, error)) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve}
	for {
		fd, err := unix.Openat2(dir, path, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // EAGAIN: a rename on the way
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			return slowly()
		default:
			return nil, &fs.PathError{Op: "open", Path: filepath.Clean(path), Err: err}
		}
	}
}

// openInRootSlowly resolves links itself, and opens the result without following any.
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

// fdPath leads to an open file of this process, whatever its name leads to now.
func fdPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// bindForStart binds what a container mounts, and others may replace, to fixed places for
// runc: parts of volumes, and paths of the device. Each path is checked and bound in one
// step, so later changes have no effect. Call undo when runc has mounted them.
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
		if err := detach(place); err != nil { // from a start that was killed
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

// openSubpath opens a part of a volume, which containers with the volume may change.
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
