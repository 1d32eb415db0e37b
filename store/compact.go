package store

import (
	"errors"
	"os"
	"runtime/debug"

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

// compact makes a database file smaller that is mostly empty: bbolt uses again
// what is free in its file, and never gives it back. Less is written by that than
// is gained, so it is not worth it often. The smaller one gets the name when it is
// on the medium as a whole. Where it cannot be made the present one is as good.
// used is how many bytes of it are.
func (f files) compact(used int64) {
	smaller := f.smaller()
	_ = os.Remove(smaller) // of a power cut
	var fs unix.Statfs_t
	info, err := os.Stat(f.database())
	if err != nil || info.Size()-used < max(used, compactFrom) ||
		unix.Statfs(f.dir(), &fs) != nil || int64(fs.Bavail)*int64(fs.Bsize) < used+2*roomSize {
		return
	}
	if err := f.compactTo(smaller); err != nil {
		_ = os.Remove(smaller)
	}
}

func (f files) compactTo(smaller string) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			err = ErrCorrupt // whoever reads that next tells of it
		}
	}()
	from, _, err := openBolt(f.database())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }() // who waits for it finds that it is another file
	to, _, err := openBolt(smaller)
	if err != nil {
		return err
	}
	to.NoSync = true
	if err := errors.Join(copyAll(to, from), to.Close()); err != nil {
		return err
	}
	if err := Sync(smaller); err != nil {
		return err
	}
	if err := os.Rename(smaller, f.database()); err != nil {
		return err
	}
	return Sync(f.dir())
}

// copyAll copies all buckets. It does without the Compact of bbolt for its size.
func copyAll(to, from *bolt.DB) error {
	c := &copier{to: to}
	err := from.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error { return c.bucket([][]byte{name}, b) })
	})
	if err == nil {
		err = c.commit()
	}
	if err != nil && c.tx != nil {
		_ = c.tx.Rollback()
	}
	return err
}

// copier copies in transactions of some size.
type copier struct {
	to   *bolt.DB
	tx   *bolt.Tx // nil: none is open
	size int
}

func (c *copier) bucket(path [][]byte, from *bolt.Bucket) error {
	b, err := c.at(path)
	if err == nil {
		err = b.SetSequence(from.Sequence())
	}
	if err != nil {
		return err
	}
	return from.ForEach(func(key, value []byte) error {
		if value == nil {
			return c.bucket(append(path, key), from.Bucket(key))
		}
		b, err := c.at(path)
		if err != nil {
			return err
		}
		b.FillPercent = 1 // they come in their order
		if err := b.Put(key, value); err != nil {
			return err
		}
		if c.size += len(value); c.size < compactStep {
			return nil
		}
		return c.commit()
	})
}

// at makes the bucket at a path, unless it is there.
func (c *copier) at(path [][]byte) (*bolt.Bucket, error) {
	if c.tx == nil {
		tx, err := c.to.Begin(true)
		if err != nil {
			return nil, err
		}
		c.tx = tx
	}
	b, err := c.tx.CreateBucketIfNotExists(path[0])
	for _, name := range path[1:] {
		if err != nil {
			return nil, err
		}
		b, err = b.CreateBucketIfNotExists(name)
	}
	return b, err
}

func (c *copier) commit() error {
	tx := c.tx
	c.tx, c.size = nil, 0
	if tx == nil {
		return nil
	}
	return tx.Commit()
}
