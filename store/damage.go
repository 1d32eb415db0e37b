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

// Damage describes the last rebuild of a damaged database.
type Damage struct {
	At   time.Time // when it was rebuilt, to the second
	Text string    // what was found and what was recovered, for people
	// Kept is the damaged file's name in the directory of the database; empty: not kept.
	Kept string
}

// settingDamage names the record of the last Damage. As a setting it survives the next one.
const settingDamage = "store.damage"

// encode returns three lines: seconds since 1970, Kept and Text.
func (d Damage) encode() []byte {
	return fmt.Appendf(nil, "%d\n%s\n%s", d.At.Unix(), d.Kept, d.Text)
}

func parseDamage(record []byte) (Damage, bool) {
	seconds, rest, _ := strings.Cut(string(record), "\n")
	kept, text, whole := strings.Cut(rest, "\n")
	at, err := strconv.ParseInt(seconds, 10, 64)
	return Damage{time.Unix(at, 0).UTC(), text, kept}, whole && err == nil
}

// Damage returns the last rebuild; false: none, or an operator deleted Kept to dismiss it.
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

// Guard waits until the open database turns out to be damaged, or ctx is done. On its error the
// process must end, and the next Open rebuilds the database: nothing this process read can be
// trusted, and bbolt may hold locks forever.
func (s *Store) Guard(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.broken:
		damage, _ := s.broke()
		return fmt.Errorf("cannot continue with store %q, which the next start recreates: %w", s.files.database(), damage)
	}
}

// guard calls f, which uses the database. Once bbolt failed, all later calls fail too.
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

// broke returns the database's damage, or nil, and whether bbolt must no longer be used.
func (s *Store) broke() (damage error, unusable bool) {
	s.breaking.Lock()
	defer s.breaking.Unlock()
	return s.damage, s.unusable
}

// breaks records that the database is damaged, for the next Open too.
func (s *Store) breaks(why error, unusable bool) {
	s.breaking.Lock()
	defer s.breaking.Unlock()
	s.unusable = s.unusable || unusable
	if s.damage != nil {
		return
	}
	s.damage = why
	// If this cannot be written, the next Open finds the damage itself.
	_ = ReplaceFile(s.files.suspect(), 0o600, strings.NewReader(fmt.Sprintf("%d %s\n", inode(s.file), why)))
	close(s.broken)
}

// suspected returns the damage that a process found in this very file, or nil.
func (f files) suspected(file *os.File) error {
	data, err := os.ReadFile(f.suspect())
	if err != nil {
		return nil
	}
	number, why, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
	if number != strconv.FormatUint(inode(file), 10) {
		return nil // it has been rebuilt since
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

// record returns a sealed record; nil if there is none.
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

// unseal opens a record that was verified at Open: a mismatch is new damage.
func (s *Store) unseal(bucket string, key, stored []byte) ([]byte, error) {
	data, err := unseal(bucket, key, stored)
	if err != nil {
		s.breaks(fmt.Errorf("record %.80q of %q: %w", key, bucket, err), false)
	}
	return data, err
}
