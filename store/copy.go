package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Copy gives a consistent copy of the database, as a file without a name that is open
// at its beginning: whoever reads it slowly keeps no transaction open, which the next
// writer might have to wait for. It has nothing of what was deleted. Beside it, reserve
// bytes stay free on the file system, or it fails with ErrFull.
func (s *Store) Copy(reserve int64) (*os.File, error) {
	file, err := s.copyTo(s.files.database()+".copy", reserve)
	if err != nil {
		return nil, fmt.Errorf("cannot copy store %q: %w", s.files.database(), full(err))
	}
	return file, nil
}

func (s *Store) copyTo(path string, reserve int64) (_ *os.File, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &fs); err != nil {
		return nil, err
	}
	if need, free := s.used()+reserve+growth, int64(fs.Bavail)*int64(fs.Bsize); free < need {
		return nil, fmt.Errorf("%w: a copy needs %d bytes in %s, %d are free", ErrFull, need, filepath.Dir(path), free)
	}
	_ = os.Remove(path) // of a power cut
	to, file, err := openBolt(path, false)
	if err != nil {
		return nil, err
	}
	copied, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0) // bbolt closes its own
	if err = errors.Join(err, os.Remove(path)); err == nil {
		to.NoSync = true
		err = s.guard(func() error { return bolt.Compact(to, s.db, compactStep) })
	}
	err = errors.Join(err, to.Close())
	if copied < 0 {
		return nil, err
	}
	result := os.NewFile(uintptr(copied), path)
	if err == nil {
		_, err = result.Seek(0, 0)
	}
	if err != nil {
		return nil, errors.Join(err, result.Close())
	}
	return result, nil
}
