package compose

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	maxKeptFile = maxContent // bytes of a file that is kept while its package is
	maxKept     = 4 << 20    // bytes of all of them
)

// errFound ends a walk.
var errFound = errors.New("found")

// holds says whether a path is one within the package, if there is one.
func (p *Package) holds(abs string) bool {
	return p != nil && within(p.dir, abs)
}

// find is the entry that a path within the package leads to, through its links.
func (p *Package) find(abs string) (name string, e *entry, err error) {
	rel, _ := filepath.Rel(p.dir, abs) // it is within
	name = "."
	for component := range strings.SplitSeq(filepath.ToSlash(rel), "/") {
		name = path.Join(name, component)
		if e := p.entries[name]; e != nil && e.kind == symlink {
			name = e.leads
		}
	}
	if name == "." {
		return name, &entry{kind: directory}, nil
	}
	if e = p.entries[name]; e == nil {
		return "", nil, &fs.PathError{Op: "open", Path: abs, Err: syscall.ENOENT}
	}
	return name, e, nil
}

// read is what a file of the package holds, whatever lies in its place now; of a large one
// one byte more than limit at most.
func (p *Package) read(abs string, limit int64) ([]byte, error) {
	name, e, err := p.find(abs)
	if err != nil {
		return nil, blame(err)
	}
	switch e.kind {
	case hardLink:
		name = e.target
	case directory:
		return nil, invalid("%s is not a regular file", abs)
	}
	content, ok := p.kept[name]
	if !ok {
		if content, err = p.content(name, limit); err != nil {
			return nil, blame(err)
		}
	}
	return content, nil
}

// pass reads over a file, and keeps what it holds where that is little: what a
// project refers to is, and the archive is not read again for each.
func (p *Package) pass(name string, size int64, content io.Reader) error {
	if size > maxKeptFile || size > int64(maxKept-p.size) {
		_, err := io.Copy(io.Discard, content)
		return err
	}
	read, err := io.ReadAll(content)
	p.kept[name] = read
	p.size += len(read)
	return err
}

// content reads one file from the archive, one byte more than limit at most.
func (p *Package) content(wanted string, limit int64) (content []byte, err error) {
	err = p.walk(func(name string, h *tar.Header, r io.Reader) error {
		if name != wanted || h.Typeflag != tar.TypeReg {
			return nil
		}
		if content, err = io.ReadAll(io.LimitReader(r, limit+1)); err != nil {
			return err
		}
		return errFound
	})
	if errors.Is(err, errFound) {
		return content, nil
	}
	return nil, errors.Join(err, fs.ErrNotExist)
}
