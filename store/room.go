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

// ErrFull reports that the medium has no room for the data. Nothing was written.
var ErrFull = errors.New("no space left")

const (
	// roomSize is reserved for the database beyond what it uses: some two hundred pages, of which a
	// small transaction takes six and gives as many back.
	roomSize = 1 << 20
	// roomStep is added at once, so that few transactions extend the reserve.
	roomStep = 256 << 10
)

// room is space reserved on the medium, so that phases and reports can be written when workloads
// fill the disk. bbolt itself only extends the file: blocks are allocated on writing, and an almost
// empty database could not commit once.
//
// The blocks are part of the file, so nothing else can take them between their release and their
// use. Reserving writes no data. A file system that cannot reserve (UBIFS), or that writes each
// page to another place (btrfs), has a reserve of its own for root.
type room struct {
	path string
	end  int64 // the file's blocks are allocated up to here; 0: not known
}

// extend reserves more when little is left; used is how much of the file has been used so far. A
// failure is no error: the next transaction tries again.
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

// admit reports whether size bytes of external data may be stored. They must leave the reserve, or
// at least half of it if the disk is otherwise full.
func (r *room) admit(used, size int64) error {
	if r.end-used-size >= roomSize/2 {
		return nil
	}
	if free, err := freeBytes(filepath.Dir(r.path)); err == nil && free < size { // otherwise the write fails
		return fmt.Errorf("%w: %d bytes must stay free in %s, %d are free", ErrFull, size, filepath.Dir(r.path), free)
	}
	return nil
}

// used returns how much of the file the database uses.
func (s *Store) used() (bytes int64) {
	_ = s.view(func(tx *bolt.Tx) error { // fails only when the database is closed
		bytes = tx.Size()
		return nil
	})
	return bytes
}

// full wraps errors about lack of space in ErrFull.
func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, bolterrors.ErrMaxSizeReached) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}
