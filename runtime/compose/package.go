package compose

import (
	"archive/tar"
	"io"
	"io/fs"
	"path/filepath"
)

const (
	maxKeptFile = maxContent // bytes of a file that is kept while its package is
	maxKept     = 4 << 20    // bytes of all of them
)

// holds tells whether a path is within the package, if there is one.
func (p *Package) holds(abs string) bool {
	return p != nil && within(p.dir, abs)
}

// read returns a file of the package, not of the device; at most one byte more than limit.
func (p *Package) read(abs string, limit int64) (content []byte, err error) {
	rel, _ := filepath.Rel(p.dir, abs) // it is within
	name, err := p.follow(filepath.ToSlash(rel), ".")
	if err != nil {
		return nil, err
	}
	e := p.entries[name]
	if e != nil && e.kind == tar.TypeLink {
		name, e = e.target, p.entries[e.target]
	}
	switch {
	case e == nil:
		return nil, invalid("%s: %w", abs, fs.ErrNotExist)
	case e.kind == tar.TypeDir:
		return nil, isDir(abs)
	case e.content != nil:
		return e.content, nil
	}
	err = p.walk(func(each string, h *tar.Header, r io.Reader) (err error) {
		if each == name && h.Typeflag == tar.TypeReg {
			content, err = io.ReadAll(io.LimitReader(r, limit+1))
		}
		return err
	})
	return content, err
}
