package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// ErrFull says that there is no room on the medium for what was to be written.
// Nothing was.
var ErrFull = errors.New("no space left")

const (
	// roomSize is what the database has of the medium beyond what it uses: some
	// two hundred pages, of which a small transaction takes six and gives as many
	// back.
	roomSize = 1 << 20
	// roomStep is how much more it takes when it takes some, so that it does not
	// with each transaction that makes the database larger.
	roomStep = 256 << 10
)

// room is the space on the medium that the database has taken ahead, so that
// phases and reports can be written while workloads leave not a single block
// free. bbolt itself only makes a file longer: blocks are given to what is
// written, and an almost empty database could not commit once.
//
// The blocks are part of the file, where nobody can take them away between
// their release and their use. Taking them writes no data. A file system that
// cannot do it (UBIFS), or writes each page to another place (btrfs), has a
// reserve of its own for root.
type room struct {
	path string
	end  int64 // up to here the file has its blocks; 0: not known
}

// extend takes more room where there is little left; used is how much of the
// file has been used so far. That there is none to take is no error: it is
// tried again after the next transaction.
func (r *room) extend(used int64) {
	if r.end-used >= roomSize {
		return
	}
	f, err := os.OpenFile(r.path, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err == nil && stat.Blocks*512 >= used+roomSize && stat.Size >= used+roomSize {
		r.end = min(stat.Size, stat.Blocks*512) // by an earlier process
		return
	}
	for _, more := range []int64{roomSize + roomStep, roomSize, roomSize / 2, roomSize / 8} {
		end := used + more
		if end <= r.end || end > maxSize {
			continue
		}
		if unix.Fallocate(int(f.Fd()), 0, 0, end) == nil {
			r.end = end
			return
		}
	}
}

// admit says whether size bytes may come from outside: they are not to take the
// room, but for half of it where nothing else is left.
func (r *room) admit(used, size int64) error {
	if r.end-used-size >= roomSize/2 {
		return nil
	}
	if free, err := freeBytes(filepath.Dir(r.path)); err == nil && free < size { // else writing tells
		return fmt.Errorf("%w: %d bytes must stay free in %s, %d are free", ErrFull, size, filepath.Dir(r.path), free)
	}
	return nil
}

// used is how much of the file the database uses.
func (s *Store) used() (bytes int64) {
	_ = s.view(func(tx *bolt.Tx) error { // the error is that the database is closed
		bytes = tx.Size()
		return nil
	})
	return bytes
}

// full marks an error that says that there is no room.
func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, bolterrors.ErrMaxSizeReached) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}
