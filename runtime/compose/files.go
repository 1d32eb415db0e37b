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

// files is what a project may read: regular files of bounded size, with strict
// only those in its directory.
type files struct {
	dir    string // absolute
	root   *os.Root
	strict bool
	count  int
	pkg    *Package          // that dir is of: what is in it is read from there; nil: from the device
	given  map[string][]byte // that the caller has read, by path

	outside []string // files read that dir does not hold, links resolved
}

// allowed refuses names that mean something else on every device, and with strict
// those that lead out of the directory of the project (PKG-07).
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

// read reads a file that was allowed.
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

// readFile reads one byte more than limit at most.
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

// note remembers a file that lies outside of the directory of the project, where
// the device has to be asked whether it may be read.
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
	case f.pkg != nil: // by a link on the device: there lies what workloads made of it
		return invalid("%s belongs to the package but is named as if it did not", abs)
	}
	return nil
}

// open does not wait for the other end of a pipe. Within the directory of the
// project the kernel sees to it that no link leads out.
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

// isMissing tells the error of a file that does not exist, or is a directory.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR)
}

// blame tells files that are missing or lead nowhere, for which the package is to
// blame, from trouble of the device.
func blame(err error) error {
	for _, trouble := range []error{syscall.EIO, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, trouble) {
			return err
		}
	}
	return invalid("%w", err)
}
