package compose

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const maxFiles = 256 // files of every sort in one project

// files reads for a project: regular files of bounded size, with strict only in its directory.
type files struct {
	dir    string // absolute
	root   *os.Root
	strict bool
	count  int
	pkg    *Package          // extracted to dir and read instead of it; nil: none
	given  map[string][]byte // that the caller has read, by path

	outside []string // files read that dir does not hold, links resolved
}

// allowed refuses names that differ between devices, and with strict those outside dir (PKG-07).
func (f *files) allowed(base, name string) (abs string, err error) {
	switch {
	case name == "", strings.ContainsRune(name, 0):
		return "", invalid("is not a file name")
	case strings.HasPrefix(name, "~"):
		return "", invalid("starts in a home directory, which a device does not have")
	case strings.Contains(name, "://"), strings.HasPrefix(name, "git@"):
		return "", invalid("is remote; a project cannot download parts of itself")
	case filepath.IsAbs(name):
		abs = filepath.Clean(name)
	default:
		abs = filepath.Join(base, name)
	}
	if f.strict && !within(f.dir, abs) {
		return "", invalid("leaves the directory of the package")
	}
	return abs, nil
}

func within(dir, abs string) bool {
	rel, err := filepath.Rel(dir, abs)
	return err == nil && filepath.IsLocal(rel)
}

func (f *files) read(abs string, limit int64) (_ []byte, err error) {
	if f.count++; f.count > maxFiles {
		return nil, invalid("project refers to more than %d files", maxFiles)
	}
	content, given := f.given[abs]
	switch {
	case given:
	case f.pkg.holds(abs):
		content, err = f.pkg.read(abs, limit)
	default:
		content, err = f.readFile(abs, limit)
	}
	if err == nil && int64(len(content)) > limit {
		return nil, invalid("%s has more than %d bytes", abs, limit)
	}
	return content, err
}

// readFile reads at most one byte more than limit.
func (f *files) readFile(abs string, limit int64) ([]byte, error) {
	file, err := f.open(abs)
	if err != nil {
		return nil, blame(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, isDir(abs)
	}
	if !info.Mode().IsRegular() {
		return nil, invalid("%s is not a regular file", abs)
	}
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, err
	}
	return content, f.note(abs)
}

func isDir(abs string) error { return invalid("%s is not a file: %w", abs, syscall.EISDIR) }

// note remembers a file outside of the project's directory, for the device's policy to judge.
func (f *files) note(abs string) error {
	if f.strict {
		return nil // the kernel has seen to it
	}
	abs, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return blame(err)
	}
	dir := f.dir
	if f.pkg != nil {
		dir = f.pkg.dir
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return blame(err)
	}
	switch {
	case !within(dir, abs):
		f.outside = append(f.outside, abs)
	case f.pkg != nil: // by a link on the device, where workloads may have changed it
		return invalid("%s belongs to the package but is named as if it did not", abs)
	}
	return nil
}

// open does not block on a pipe. The kernel keeps links from leaving the project directory.
func (f *files) open(abs string) (*os.File, error) {
	const flags = os.O_RDONLY | syscall.O_NONBLOCK
	if !f.strict {
		return os.OpenFile(abs, flags, 0)
	}
	rel, err := filepath.Rel(f.dir, abs)
	if err != nil {
		return nil, err
	}
	return f.root.OpenFile(rel, flags, 0)
}

// isMissing tells whether a file does not exist, or is a directory.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR)
}

// blame makes missing files and dangling links the package's fault, unlike other errors.
func blame(err error) error {
	for _, trouble := range []error{syscall.EIO, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, trouble) {
			return err
		}
	}
	return invalid("%w", err)
}
