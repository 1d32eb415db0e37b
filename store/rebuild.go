package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
)

// files is the path of a database, from which the paths of its other files follow.
type files string

func (f files) database() string          { return string(f) }
func (f files) bad() string               { return string(f) + ".bad" }     // the last damaged one
func (f files) suspect() string           { return string(f) + ".suspect" } // present after damage, with its description
func (f files) closed() string            { return string(f) + ".closed" }  // present after a clean end
func (f files) smaller() string           { return string(f) + ".compact" } // while a copy is made
func (f files) dir() string               { return filepath.Dir(string(f)) }
func (f files) beside(name string) string { return filepath.Join(f.dir(), name) }

func (f files) accepted() string { return f.beside("accepted.json") }
func (f files) journal() string  { return f.beside("journal.json") }
func (f files) settings() string { return f.beside("settings.json") }

// rebuild replaces a damaged or missing database with a new one; why is the cause. The new one
// holds what can be verified, and the settings from their copy. It gets its name only when
// complete: at any time either the old or the new database is in place.
func (f files) rebuild(o Options, why error) error {
	damage, old := &Damage{At: o.Now().UTC().Round(0), Text: why.Error()}, true
	if errors.Is(why, fs.ErrNotExist) {
		old, damage.Text = false, "the database was missing"
		if !f.existed() {
			damage = nil // this is the first one
		}
	}
	if err := f.replace(o.Apart, old, damage); err != nil {
		return err
	}
	return errors.Join(remove(f.suspect()), Sync(f.dir()))
}

func (f files) existed() bool {
	for _, path := range []string{f.accepted(), f.journal(), f.settings()} {
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	return false
}

// replace builds and renames the database. If space is short it omits what can be fetched again.
func (f files) replace(apart Apart, old bool, damage *Damage) error {
	type way struct{ read, keep bool } // the old one
	ways := []way{{false, false}}
	if old {
		// The last resort: an agent that starts empty is better than one that does not start.
		ways = []way{{true, f.roomToKeep()}, {true, false}, {false, false}}
	}
	temporary := f.database() + ".new"
	var err error
	for i, w := range ways {
		if err = remove(temporary); err == nil && old && !w.read {
			err = remove(f.database())
		}
		if err == nil {
			err = f.fill(temporary, apart, w.read, w.keep, damage)
		}
		if !errors.Is(err, ErrFull) {
			break
		}
		if i == 0 && damage != nil {
			_ = os.Remove(f.bad())
		}
	}
	if err != nil {
		return errors.Join(err, remove(temporary))
	}
	if damage != nil && damage.Kept != "" {
		if err := remove(f.bad()); err != nil {
			return err
		}
		_ = os.Link(f.database(), f.bad()) // evidence is not worth a failed start
	}
	return os.Rename(temporary, f.database())
}

// roomToKeep reports whether there is space for two more databases of the damaged one's size.
func (f files) roomToKeep() bool {
	info, err := os.Stat(f.database())
	free, freeErr := freeBytes(f.dir())
	return err == nil && freeErr == nil && free > 2*info.Size()+4*roomSize
}

// fill creates a database at path, with the readable content of the present one if read.
func (f files) fill(path string, apart Apart, read, keep bool, damage *Damage) error {
	db, err := initialise(path)
	if err != nil {
		return full(err)
	}
	s := &salvage{db: db, settings: make(map[string]bool)}
	if read {
		err = s.from(apart, f.database())
	}
	if err == nil && damage != nil {
		if damage.Kept = ""; keep {
			damage.Kept = filepath.Base(f.bad())
		}
		err = f.finish(s, *damage, read)
	}
	if err == nil {
		err = db.Sync()
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return full(err)
	}
	return full(Sync(path))
}

// finish adds the settings kept beside the database, and the Damage.
func (f files) finish(s *salvage, damage Damage, read bool) error {
	kept, _ := readSettings(f.settings()) // unreadable ones are lost
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

// salvage copies into an empty database what can be verified: records by their sums, artifacts by
// their digests. The journal is left to its chain. The result may be an earlier state, so the
// manifest loses its ETag and the WFM is asked for everything.
type salvage struct {
	db                          *bolt.DB
	records, artifacts, entries int
	settings                    map[string]bool // names of the recovered ones

	waiting []func(w *writing) error
	size    int

	artifact string // whose chunks are read
	chunks   []byte
	outbox   uint64
}

const (
	// salvageBytes is how much is written per transaction.
	salvageBytes = 1 << 20
	// maxArtifact exceeds the size of any artifact.
	maxArtifact = 128 << 20
)

// from reads apart, one bucket at a time: a crash costs only the rest of that bucket.
func (s *salvage) from(apart Apart, path string) error {
	for _, bucket := range append(buckets(), bucketJournal, bucketMeta) {
		out, err := apart("read", path, bucket)
		if err != nil {
			return err
		}
		records := json.NewDecoder(out)
		for r := (found{}); err == nil && records.Decode(&r) == nil; r = (found{}) {
			err = s.take(bucket, r)
		}
		if ended := out.Close(); err != nil || ended != nil && !isDamage(ended) {
			return errors.Join(err, ended)
		}
	}
	return errors.Join(s.endArtifact(), s.flush())
}

// take copies one record if it is what was written.
func (s *salvage) take(bucket string, r found) error {
	switch {
	case bucket == bucketArtifacts:
		if r.In != s.artifact {
			if err := s.endArtifact(); err != nil {
				return err
			}
			s.artifact = r.In
		}
		if s.chunks = append(s.chunks, r.Value...); len(s.chunks) > maxArtifact {
			s.chunks = nil // too large for an artifact
		}
	case r.In != "" || len(r.Key) == 0 || len(r.Key) > bolt.MaxKeySize:
	case bucket == bucketJournal:
		if _, err := decodeEntry(r.Key, r.Value); err != nil {
			return nil
		}
		s.entries++
		return s.add(len(r.Value), func(w *writing) error {
			b, err := w.CreateBucketIfNotExists([]byte(bucketJournal))
			if err != nil {
				return err
			}
			return b.Put(r.Key, r.Value)
		})
	case bucket == bucketMeta:
		if _, err := decode[journalEnds](r.Value); err != nil || string(r.Key) != keyJournal {
			return nil
		}
		return s.add(len(r.Value), func(w *writing) error { return w.Bucket([]byte(bucketMeta)).Put(r.Key, r.Value) })
	default:
		return s.sealed(bucket, r.Key, r.Value)
	}
	return nil
}

func (s *salvage) sealed(bucket string, key, stored []byte) error {
	data, err := unseal(bucket, key, stored)
	if err != nil {
		return nil
	}
	switch bucket {
	case bucketManifest:
		m, err := decode[Manifest](data)
		if err != nil {
			return nil
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
	return s.add(len(stored), func(w *writing) error { return w.put(bucket, key, stored) })
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
