package ociimage

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Entry is one member of an archive. The zero Type is a regular file; Mode zero
// is 0644 for files and 0755 for directories.
type Entry struct {
	Name string // as it is to be written, also where that is malformed
	Type byte   // tar.TypeReg, tar.TypeDir, tar.TypeSymlink ...
	Mode int64
	UID  int
	GID  int
	Link string // the target of a link
	Data []byte
}

// Files is the content of a directory: slash-separated relative path to bytes.
type Files map[string][]byte

// ReadFiles reads a directory. It refuses anything but regular files and
// directories: what it reads is going to be a package, and a package that
// depends on the machine it was made on is of no use.
func ReadFiles(dir string) (Files, error) {
	files := make(Files)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return nil
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is neither a regular file nor a directory", name)
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(rel)], err = os.ReadFile(name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read package %s: %w", dir, err)
	}
	return files, nil
}

// under gives the entries of files below the directory top, parents first, in
// an order that depends on the names alone.
func (f Files) under(top string) []Entry {
	dirs := map[string]bool{}
	if top != "" {
		dirs[top] = true
	}
	var entries []Entry
	for name, data := range f {
		name = path.Join(top, name)
		for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
			dirs[dir] = true
		}
		entries = append(entries, Entry{Name: name, Data: data})
	}
	for dir := range dirs {
		entries = append(entries, Entry{Name: dir + "/", Type: tar.TypeDir})
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries
}

// Tar writes entries in the order given, with no time, owner name or device
// number of this machine in them.
func Tar(entries []Entry) ([]byte, error) {
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{
			Name: e.Name, Typeflag: cmp.Or(e.Type, tar.TypeReg), Linkname: e.Link,
			Mode: e.Mode, Uid: e.UID, Gid: e.GID, Size: int64(len(e.Data)),
			Format: tar.FormatPAX,
		}
		switch {
		case h.Mode != 0:
		case h.Typeflag == tar.TypeDir:
			h.Mode = 0o755
		default:
			h.Mode = 0o644
		}
		err := tw.WriteHeader(h)
		if err == nil {
			_, err = tw.Write(e.Data)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot write archive entry %q: %w", e.Name, err)
		}
	}
	if err := tw.Close(); err != nil {
		return nil, fmt.Errorf("cannot finish archive: %w", err)
	}
	return out.Bytes(), nil
}

// TarGzip is Tar, compressed.
func TarGzip(entries []Entry) ([]byte, error) {
	plain, err := Tar(entries)
	if err != nil {
		return nil, err
	}
	return Gzip(plain)
}

// Gzip compresses data.
func Gzip(plain []byte) ([]byte, error) {
	var out bytes.Buffer
	zw := gzip.NewWriter(&out) // its header carries no name and no time unless told to
	_, err := zw.Write(plain)
	if err = errors.Join(err, zw.Close()); err != nil {
		return nil, fmt.Errorf("cannot compress: %w", err)
	}
	return out.Bytes(), nil
}
