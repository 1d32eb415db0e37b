package store

import (
	"errors"
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"
)

const (
	// compactFrom is how much of the file has to be of no use before it is worth
	// to write the rest once more.
	compactFrom = 8 << 20
	// compactStep is how much of it is in memory at a time.
	compactStep = 1 << 20
)

// openCompact opens the database, and makes its file smaller first where that is
// mostly empty: bbolt uses again what is free in its file, and never gives it back.
// Less is written by that than is gained, so it is not worth it often. The smaller one
// gets the name when it is on the medium as a whole. Where it cannot be made the
// present one is as good.
func (f files) openCompact() (*bolt.DB, *os.File, error) {
	_ = os.Remove(f.smaller()) // of a power cut
	db, file, err := openBolt(f.database(), false)
	if err != nil || !f.isMostlyEmpty(db) {
		return db, file, err
	}
	err = f.compact(db, guarded) // whoever reads what is damaged next tells of it
	if err == nil {
		err = Sync(f.smaller())
	}
	if err == nil {
		err = os.Rename(f.smaller(), f.database())
	}
	if err == nil {
		err = Sync(f.dir())
	}
	if err != nil {
		_ = os.Remove(f.smaller())
	}
	if err := db.Close(); err != nil {
		return nil, nil, err
	}
	return openBolt(f.database(), false)
}

// isMostlyEmpty says that it is worth it, and that there is space for a moment.
func (f files) isMostlyEmpty(db *bolt.DB) bool {
	var used int64
	info, err := os.Stat(f.database())
	if err == nil {
		err = db.View(func(tx *bolt.Tx) error {
			used = tx.Size() - int64(db.Stats().FreePageN)*pageSize
			return nil
		})
	}
	free, freeErr := freeBytes(f.dir())
	return err == nil && freeErr == nil && info.Size()-used >= max(used, compactFrom) && free >= used+2*roomSize
}

// compact writes what a database holds to a file of its own, which is not synced.
func (f files) compact(from *bolt.DB, guard func(func() error) error) error {
	to, _, err := openBolt(f.smaller(), false)
	if err != nil {
		return err
	}
	to.NoSync = true
	err = guard(func() error { return bolt.Compact(to, from, compactStep) })
	return errors.Join(err, to.Close())
}

// Copy gives a consistent copy of the database, as a file without a name that is open
// at its beginning: whoever reads it slowly keeps no transaction open, which the next
// writer might have to wait for. It has nothing of what was deleted. Beside it, reserve
// bytes stay free on the file system, or it fails with ErrFull.
func (s *Store) Copy(reserve int64) (*os.File, error) {
	s.copying.Lock()
	defer s.copying.Unlock()
	file, err := s.copy(reserve)
	if err != nil {
		return nil, fmt.Errorf("cannot copy store %q: %w", s.files.database(), full(err))
	}
	return file, nil
}

func (s *Store) copy(reserve int64) (*os.File, error) {
	free, err := freeBytes(s.files.dir())
	if err != nil {
		return nil, err
	}
	if need := s.used() + reserve + growth; free < need {
		return nil, fmt.Errorf("%w: a copy needs %d bytes in %s, %d are free", ErrFull, need, s.files.dir(), free)
	}
	err = s.files.compact(s.db, s.guard)
	file, openErr := os.Open(s.files.smaller())
	err = errors.Join(err, openErr, remove(s.files.smaller()))
	if err != nil && file != nil {
		_ = file.Close() // it was read by nobody
		file = nil
	}
	return file, err
}
