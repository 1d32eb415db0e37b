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

// ErrNoRoom: incoming data reached its bound, or would leave too little room to others.
var ErrNoRoom = errors.New("no room")

const (
	// littleIncoming is always accepted: it may say what to do about a full disk.
	littleIncoming       = 1 << 20
	defaultIncomingBytes = 128 << 20
)

// Incoming is a folder for a large artifact in transfer: one file, named by its final digest. Its
// content is neither verified nor synced: after a power cut a file may hold anything, which the
// digest shows once it is complete. It survives a restart, so that a transfer can resume.
//
// Methods may be called concurrently, but an artifact must not be used while another is appended
// to.
type Incoming struct {
	dir     string
	limit   int64
	reserve int64
}

// Incoming returns the folder beside the database, which is created on demand.
func (s *Store) Incoming() *Incoming { return s.incoming }

// Size returns how many bytes of d are here; 0 if none.
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

// Open reads the bytes of d from the beginning; ErrNotFound if there are none.
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

// Append opens d for appending and drops all others. Writes beyond the bounds fail with ErrNoRoom.
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

// openIncoming opens a file of the folder and does not follow links.
func openIncoming(path string, flags int) (*os.File, error) {
	return os.OpenFile(path, flags|syscall.O_NOFOLLOW, 0o600)
}

// Remove drops the bytes of d.
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

// Keep drops everything in the folder but the named artifacts.
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

// path returns the file of d. A well-formed digest contains no separator.
func (i *Incoming) path(d digest.Digest) (string, error) {
	if err := d.Validate(); err != nil {
		return "", fmt.Errorf("incoming artifact %q: %w", d, err)
	}
	return filepath.Join(i.dir, strings.Replace(d.String(), ":", "-", 1)), nil
}

// incomingFile is a file with bounded growth.
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
