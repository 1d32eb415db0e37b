package store

import (
	"errors"
	"os"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
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
	if err := f.compact(db); err != nil {
		_ = os.Remove(f.smaller())
	}
	if err := db.Close(); err != nil {
		return nil, nil, err
	}
	return openBolt(f.database(), false)
}

// isMostlyEmpty says that it is worth it, and that there is space for a moment.
func (f files) isMostlyEmpty(db *bolt.DB) bool {
	var fs unix.Statfs_t
	var used int64
	info, err := os.Stat(f.database())
	if err == nil {
		err = db.View(func(tx *bolt.Tx) error {
			used = tx.Size() - int64(db.Stats().FreePageN)*pageSize
			return nil
		})
	}
	return err == nil && info.Size()-used >= max(used, compactFrom) &&
		unix.Statfs(f.dir(), &fs) == nil && int64(fs.Bavail)*int64(fs.Bsize) >= used+2*roomSize
}

func (f files) compact(from *bolt.DB) error {
	to, _, err := openBolt(f.smaller(), false)
	if err != nil {
		return err
	}
	to.NoSync = true
	err = guarded(func() error { return bolt.Compact(to, from, compactStep) }) // whoever reads what is damaged next tells of it
	if err := errors.Join(err, to.Close()); err != nil {
		return err
	}
	if err := Sync(f.smaller()); err != nil {
		return err
	}
	if err := os.Rename(f.smaller(), f.database()); err != nil {
		return err
	}
	return Sync(f.dir())
}
