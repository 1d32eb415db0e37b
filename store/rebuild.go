package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// files is the path of a database, and knows those of what belongs to it.
type files string

func (f files) database() string          { return string(f) }
func (f files) bad() string               { return string(f) + ".bad" }     // the last one that was damaged
func (f files) suspect() string           { return string(f) + ".suspect" } // there when a process met damage: says which
func (f files) smaller() string           { return string(f) + ".compact" } // what is to take the place
func (f files) dir() string               { return filepath.Dir(string(f)) }
func (f files) beside(name string) string { return filepath.Join(f.dir(), name) }

func (f files) accepted() acceptedFile { return acceptedFile(f.beside("accepted.json")) }
func (f files) journal() journalFile   { return journalFile(f.beside("journal.json")) }
func (f files) settings() settingsFile { return settingsFile(f.beside("settings.json")) }

// rebuild puts a new database in the place of the one that is damaged, or gone.
// It has what can be told to be as it was written, and the settings that are kept
// beside. It gets its name only when it is complete: at any time there is either
// the one or the other.
func (f files) rebuild(now func() time.Time) error {
	dir, err := os.Open(f.dir())
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return ErrLocked
		}
		return fmt.Errorf("cannot lock directory: %w", err)
	}

	damage := &Damage{At: now().UTC().Round(0)}
	old, err := f.lock()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if !f.existed() {
			damage = nil // this is the first one
			break
		}
		damage.Text = "the database was missing"
	case err != nil:
		return err
	default:
		defer old.Close()
		_, why := f.examine(old)
		if !isDamage(why) {
			return why // another process was faster
		}
		damage.Text = why.Error()
	}
	if err := f.replace(old, damage); err != nil {
		return err
	}
	if err := os.Remove(f.suspect()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return dir.Sync()
}

// existed says that there was a database here: it has left something beside.
func (f files) existed() bool {
	for _, path := range []string{string(f.accepted()), string(f.journal()), string(f.settings())} {
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	return false
}

// replace makes the database in a file of its own, and gives that the name. Where
// there is little space it goes without what can be had again.
func (f files) replace(old *os.File, damage *Damage) error {
	temporary := f.database() + ".new"
	drop := func() error {
		if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	err := drop()
	if err == nil {
		err = f.fill(temporary, old, damage, old != nil && f.roomToKeep(old))
	}
	if errors.Is(err, ErrFull) && damage != nil {
		_ = os.Remove(f.bad())
		if err = drop(); err == nil {
			err = f.fill(temporary, old, damage, false)
		}
	}
	if errors.Is(err, ErrFull) && old != nil {
		// Not even what is worth keeping fits beside the damaged one. An agent that
		// starts with nothing is better than one that does not start.
		if err = errors.Join(drop(), old.Close(), os.Remove(f.database())); err == nil {
			err = f.fill(temporary, nil, damage, false)
		}
	}
	if err != nil {
		return errors.Join(err, drop())
	}
	if damage != nil && damage.Kept != "" {
		if err := os.Remove(f.bad()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		_ = os.Link(f.database(), f.bad()) // evidence is not worth a failed start
	}
	return os.Rename(temporary, f.database())
}

// roomToKeep says that there is space for another database beside the damaged one,
// and that much again.
func (f files) roomToKeep(old *os.File) bool {
	var stat unix.Statfs_t
	info, err := old.Stat()
	return err == nil && unix.Statfs(f.dir(), &stat) == nil &&
		int64(stat.Bavail)*int64(stat.Bsize) > 2*info.Size()+4*roomSize
}

// fill makes a database at path of what can be read of old, nil: nothing.
func (f files) fill(path string, old *os.File, damage *Damage, keep bool) error {
	db, err := initialise(path)
	if err != nil {
		return full(err)
	}
	s := &salvage{db: db, settings: make(map[string]bool)}
	if old != nil {
		err = s.from(old)
	}
	if err == nil && damage != nil {
		if damage.Kept = ""; keep {
			damage.Kept = filepath.Base(f.bad())
		}
		err = f.finish(s, *damage, old != nil)
	}
	if err == nil {
		err = db.Sync()
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return full(err)
	}
	return full(Sync(path))
}

// finish adds what is kept beside the database, and what happened to it.
func (f files) finish(s *salvage, damage Damage, read bool) error {
	kept, _ := f.settings().read() // what cannot be read is lost, too
	for name, value := range kept {
		if !s.settings[name] && name != settingDamage {
			if err := s.put(bucketSettings, []byte(name), sealed(bucketSettings, []byte(name), value)); err != nil {
				return err
			}
		}
	}
	if read {
		damage.Text = fmt.Sprintf("%s; %d records, %d artifacts and %d entries of the journal were recovered, the rest is lost",
			damage.Text, s.records, s.artifacts, s.entries)
	}
	if err := s.put(bucketSettings, []byte(settingDamage), sealed(bucketSettings, []byte(settingDamage), damage.encode())); err != nil {
		return err
	}
	return s.flush()
}

// salvage takes over into an empty database what can be told to be as it was
// written: records by their sums, artifacts by their digests. What the journal is
// worth its chain tells. A former state of the whole is possible, so the manifest
// loses its ETag: the WFM is asked for all of it.
type salvage struct {
	db                          *bolt.DB
	records, artifacts, entries int
	settings                    map[string]bool // names of those that were taken over

	waiting []func(w *writing) error
	size    int

	artifact string // whose chunks are read
	chunks   []byte
	outbox   uint64
}

// salvageBytes is how much is written at once.
const salvageBytes = 1 << 20

func (s *salvage) from(old *os.File) error {
	err := salvageStructure(old, visitor{bucket: s.bucket, record: s.record})
	return errors.Join(err, s.endArtifact(), s.flush())
}

func (s *salvage) bucket(in []string, name string, _ uint64) error {
	if err := s.endArtifact(); err != nil {
		return err
	}
	if len(in) == 1 && in[0] == bucketArtifacts {
		s.artifact, s.chunks = name, nil
	}
	return nil
}

func (s *salvage) record(in []string, key []byte, value func() ([]byte, error)) error {
	if len(in) == 2 && in[0] == bucketArtifacts && in[1] == s.artifact {
		chunk, err := value()
		s.chunks = append(s.chunks, chunk...)
		return err
	}
	if len(in) != 1 || len(key) == 0 || len(key) > bolt.MaxKeySize {
		return nil
	}
	stored, err := value()
	if err != nil {
		return err
	}
	switch {
	case isSealed(in[0]):
		return s.sealed(in[0], key, stored)
	case in[0] == bucketJournal:
		if _, err := decodeEntry(key, stored); err != nil {
			return err
		}
		s.entries++
		return s.add(len(stored), func(w *writing) error {
			b, err := w.CreateBucketIfNotExists([]byte(bucketJournal))
			if err != nil {
				return err
			}
			return b.Put(key, stored)
		})
	case in[0] == bucketMeta && string(key) == keyJournal:
		if _, err := decode[journalEnds](stored); err != nil {
			return err
		}
		return s.add(len(stored), func(w *writing) error { return w.Bucket([]byte(bucketMeta)).Put(key, stored) })
	}
	return nil
}

func (s *salvage) sealed(bucket string, key, stored []byte) error {
	data, err := unseal(bucket, key, stored)
	if err != nil {
		return err
	}
	switch bucket {
	case bucketManifest:
		m, err := decode[Manifest](data)
		if err != nil {
			return err
		}
		m.ETag = ""
		if data, err = encode(m); err != nil {
			return err
		}
		stored = sealed(bucket, key, data)
	case bucketSettings:
		s.settings[string(key)] = true
	case bucketOutbox:
		if len(key) >= sequenceSize {
			s.outbox = max(s.outbox, binary.BigEndian.Uint64(key))
		}
	}
	s.records++
	return s.put(bucket, key, stored)
}

// endArtifact takes the artifact over whose chunks were read, if it is whole.
func (s *salvage) endArtifact() error {
	d, data := digest.Digest(s.artifact), s.chunks
	s.artifact, s.chunks = "", nil
	if d == "" || verify(d, data) != nil {
		return nil
	}
	s.artifacts++
	return s.add(len(data), func(w *writing) error { return putArtifact(w, d, data) })
}

func (s *salvage) put(bucket string, key, stored []byte) error {
	return s.add(len(stored), func(w *writing) error { return w.store(bucket, key, stored) })
}

func (s *salvage) add(size int, do func(w *writing) error) error {
	s.waiting, s.size = append(s.waiting, do), s.size+size
	if s.size < salvageBytes {
		return nil
	}
	return s.flush()
}

func (s *salvage) flush() error {
	err := s.db.Update(func(tx *bolt.Tx) error {
		return inTransaction(tx, func(w *writing) error {
			for _, do := range s.waiting {
				if err := do(w); err != nil {
					return err
				}
			}
			outbox := w.Bucket([]byte(bucketOutbox))
			return outbox.SetSequence(max(outbox.Sequence(), s.outbox))
		})
	})
	s.waiting, s.size = nil, 0
	return err
}
