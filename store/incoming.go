package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/go-digest"
)

// ErrNoRoom says that what is incoming has as much as it may, or that more would not
// leave enough of the file system to others.
var ErrNoRoom = errors.New("no room")

const (
	// littleIncoming may come in any case: it tells what there is to do about a
	// disk that is full.
	littleIncoming = 1 << 20
	// defaultIncomingBytes is how much may come where nothing else is said.
	defaultIncomingBytes = 128 << 20
)

// Incoming is a folder for what has come so far of a large artifact: one file,
// named by the digest that it is to have in the end. Nothing in it is verified,
// nor brought to the medium: after a power cut a file may hold anything, which
// its digest shows once it is complete. What is there survives a restart, so
// that a transfer goes on where it broke off.
//
// Its methods may be called concurrently, but nobody can use an artifact while
// another one adds to it.
type Incoming struct {
	dir     string
	limit   int64
	reserve int64
}

// Incoming returns the folder beside the database. It is made when it is needed.
func (s *Store) Incoming() *Incoming { return s.incoming }

// Size is how many bytes there are of d, 0 where there is nothing.
func (i *Incoming) Size(d digest.Digest) (int64, error) {
	path, err := i.path(d)
	if err != nil {
		return 0, err
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("cannot find incoming artifact %s: %w", d, err)
	}
	return info.Size(), nil
}

// Open reads what there is of d from its beginning; ErrNotFound where there is nothing.
func (i *Incoming) Open(d digest.Digest) (io.ReadCloser, error) {
	path, err := i.path(d)
	if err != nil {
		return nil, err
	}
	f, err := openIncoming(path, os.O_RDONLY)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("incoming artifact %s: %w", d, ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("cannot read incoming artifact %s: %w", d, err)
	}
	return f, nil
}

// Append opens what there is of d to add to it; all others go. Writing fails with
// ErrNoRoom where there would be more bytes than there may.
func (i *Incoming) Append(d digest.Digest) (io.WriteCloser, error) {
	path, err := i.path(d)
	if err != nil {
		return nil, err
	}
	w, err := i.append(path)
	if err != nil {
		return nil, fmt.Errorf("cannot append to incoming artifact %s: %w", d, err)
	}
	return w, nil
}

func (i *Incoming) append(path string) (*incomingFile, error) {
	if err := makeDir(i.dir); err != nil {
		return nil, err
	}
	if err := i.keep(path); err != nil {
		return nil, err
	}
	free, err := freeBytes(i.dir)
	if err != nil {
		return nil, err
	}
	f, err := openIncoming(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &incomingFile{f, min(i.limit-info.Size(), max(free-i.reserve, littleIncoming))}, nil
}

// openIncoming opens a file of the folder. A link does not lead out of it.
func openIncoming(path string, flags int) (*os.File, error) {
	return os.OpenFile(path, flags|syscall.O_NOFOLLOW, 0o600)
}

// Remove drops what there is of d.
func (i *Incoming) Remove(d digest.Digest) error {
	path, err := i.path(d)
	if err == nil {
		err = os.RemoveAll(path)
	}
	if err != nil {
		return fmt.Errorf("cannot drop incoming artifact %s: %w", d, err)
	}
	return nil
}

// Keep drops all but the artifacts that are named, and whatever else is in the folder.
func (i *Incoming) Keep(wanted ...digest.Digest) error {
	var paths []string
	for _, d := range wanted {
		if path, err := i.path(d); err == nil {
			paths = append(paths, path)
		}
	}
	if err := i.keep(paths...); err != nil {
		return fmt.Errorf("cannot drop incoming artifacts: %w", err)
	}
	return nil
}

func (i *Incoming) keep(paths ...string) error {
	names, err := os.ReadDir(i.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, name := range names {
		if path := filepath.Join(i.dir, name.Name()); !slices.Contains(paths, path) {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return err
}

// path is the file of d. A digest that is well formed has no separator in it.
func (i *Incoming) path(d digest.Digest) (string, error) {
	if err := d.Validate(); err != nil {
		return "", fmt.Errorf("incoming artifact %q: %w", d, err)
	}
	return filepath.Join(i.dir, strings.Replace(d.String(), ":", "-", 1)), nil
}

// incomingFile is a file that grows no further than there is room.
type incomingFile struct {
	file *os.File
	room int64
}

func (f *incomingFile) Write(p []byte) (int, error) {
	if int64(len(p)) > f.room {
		return 0, fmt.Errorf("%w: an incoming artifact has reached its limit, or would leave too little free", ErrNoRoom)
	}
	n, err := f.file.Write(p)
	f.room -= int64(n)
	return n, err
}

func (f *incomingFile) Close() error { return f.file.Close() }
