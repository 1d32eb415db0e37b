package compose

import (
	"archive/tar"
	"io"
	"io/fs"
	"path/filepath"
	"syscall"
)

const (
	maxKeptFile = maxContent // bytes of a file that is kept while its package is
	maxKept     = 4 << 20    // bytes of all of them
)

// holds says whether a path is one within the package, if there is one.
func (p *Package) holds(abs string) bool {
	return p != nil && within(p.dir, abs)
}

// find is the entry that a path within the package leads to, through its links.
func (p *Package) find(abs string) (name string, e *entry, err error) {
	rel, _ := filepath.Rel(p.dir, abs) // it is within
	if name, err = p.follow(filepath.ToSlash(rel), "."); err != nil {
		return "", nil, err
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
	if e.kind == tar.TypeLink {
		name, e = e.target, p.entries[e.target]
	}
	switch {
	case e.kind == tar.TypeDir:
		return nil, invalid("%s is not a regular file", abs)
	case e.content != nil:
		return e.content, nil
	}
	var content []byte
	err = p.walk(func(each string, h *tar.Header, r io.Reader) (err error) {
		if each == name && h.Typeflag == tar.TypeReg {
			content, err = io.ReadAll(io.LimitReader(r, limit+1))
		}
		return err
	})
	return content, err
}
