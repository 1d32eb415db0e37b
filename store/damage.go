package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Damage is what became of a database that was not as it was written.
type Damage struct {
	At   time.Time // when it was made anew, to the second
	Text string    // what was found and what was taken over, for people
	// Kept is the name of the file that it is kept in, in the directory of the
	// database; empty: it is not.
	Kept string
}

// settingDamage names the record of the last Damage. It has a place among the
// settings to survive the next one.
const settingDamage = "store.damage"

// encode gives the record: seconds since 1970, Kept and Text, a line each.
func (d Damage) encode() []byte {
	return fmt.Appendf(nil, "%d\n%s\n%s", d.At.Unix(), d.Kept, d.Text)
}

func parseDamage(record []byte) (Damage, bool) {
	seconds, rest, _ := strings.Cut(string(record), "\n")
	kept, text, whole := strings.Cut(rest, "\n")
	at, err := strconv.ParseInt(seconds, 10, 64)
	return Damage{time.Unix(at, 0).UTC(), text, kept}, whole && err == nil
}

// Damage says how the database was made anew when it was the last time; false: it
// never was, or somebody said that it may be forgotten by deleting Kept.
func (s *Store) Damage() (Damage, bool) {
	record, set, err := s.Setting(settingDamage)
	if err != nil || !set {
		return Damage{}, false
	}
	d, whole := parseDamage(record)
	if d.Kept != "" {
		if _, err := os.Lstat(s.files.bad()); err != nil {
			return Damage{}, false
		}
	}
	return d, whole
}

// Guard waits until the database turns out to be damaged while it is open, or ctx
// is done. With its error the process has to end: the next Open makes the database
// anew. Nothing that this process knows of it is to be trusted then, and part of it
// may be held by bbolt forever.
func (s *Store) Guard(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.broken:
		damage, _ := s.broke()
		return fmt.Errorf("cannot continue with store %q, which the next start recreates: %w", s.files.database(), damage)
	}
}

// guard calls f, which uses the database. What bbolt stumbles over is an error, now
// and with each call from then on.
func (s *Store) guard(f func() error) error {
	if damage, unusable := s.broke(); unusable {
		return damage
	}
	err := guarded(f)
	if _, over := errors.AsType[*stumble](err); over {
		s.breaks(err, true)
	}
	return err
}

// broke says how the database turned out to be damaged, nil: it did not, and that
// bbolt must not be asked any more.
func (s *Store) broke() (damage error, unusable bool) {
	s.breaking.Lock()
	defer s.breaking.Unlock()
	return s.damage, s.unusable
}

// breaks notes that the database is damaged, also for the next Open.
func (s *Store) breaks(why error, unusable bool) {
	s.breaking.Lock()
	defer s.breaking.Unlock()
	s.unusable = s.unusable || unusable
	if s.damage != nil {
		return
	}
	s.damage = why
	// Where it cannot be written the next Open finds for itself what is wrong.
	_ = ReplaceFile(s.files.suspect(), 0o600, strings.NewReader(fmt.Sprintf("%d %s\n", inode(s.file), why)))
	close(s.broken)
}

// suspected is the damage that a process met while it had this file open, or nil.
func (f files) suspected(file *os.File) error {
	data, err := os.ReadFile(f.suspect())
	if err != nil {
		return nil
	}
	number, why, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
	if number != strconv.FormatUint(inode(file), 10) {
		return nil // it has been made anew since
	}
	return fmt.Errorf("%w: %.512s", ErrCorrupt, why)
}

func inode(file *os.File) uint64 {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return 0
	}
	return stat.Ino
}

// record is a sealed record; nil where there is none.
func (s *Store) record(bucket, key string) (data []byte, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		stored := tx.Bucket([]byte(bucket)).Get([]byte(key))
		if stored == nil {
			return nil
		}
		whole, err := s.unseal(bucket, []byte(key), stored)
		data = bytes.Clone(whole)
		return err
	})
	return data, err
}

// unseal is the function for a record that was whole when the database was opened.
func (s *Store) unseal(bucket string, key, stored []byte) ([]byte, error) {
	data, err := unseal(bucket, key, stored)
	if err != nil {
		s.breaks(fmt.Errorf("record %.80q of %q: %w", key, bucket, err), false)
	}
	return data, err
}
