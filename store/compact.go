package store

import (
	"errors"
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"
)

const (
	// compactFrom is how much of the file must be free before rewriting the rest is worthwhile.
	compactFrom = 8 << 20
	// compactStep is how much of it is in memory at a time.
	compactStep = 1 << 20
)

// openCompact opens the database and first compacts a mostly empty file: bbolt reuses free pages
// but never returns them. Compacting writes less than it frees, so it is rare. The smaller file is
// renamed once it is durable; if it cannot be made, the present one is kept.
func (f files) openCompact() (*bolt.DB, *os.File, error) {
	_ = os.Remove(f.smaller()) // left by a power cut
	db, file, err := openBolt(f.database(), false)
	if err != nil || !f.isMostlyEmpty(db) {
		return db, file, err
	}
	err = f.compact(db, guarded) // the next read of the damage reports it
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

// isMostlyEmpty reports whether compacting is worthwhile and there is temporary space.
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

// compact writes a database's content to another file, without syncing it.
func (f files) compact(from *bolt.DB, guard func(func() error) error) error {
	to, _, err := openBolt(f.smaller(), false)
	if err != nil {
		return err
	}
	to.NoSync = true
	err = guard(func() error { return bolt.Compact(to, from, compactStep) })
	return errors.Join(err, to.Close())
}

// Copy returns a consistent copy of the database, as an open, unnamed file at its beginning: a slow
// reader then holds no transaction that writers would wait for. Deleted data is not in it. Unless
// reserve bytes stay free on the file system, it fails with ErrFull.
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
		_ = file.Close() // nothing was read from it
		file = nil
	}
	return file, err
}
