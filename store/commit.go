package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
)

// Change is the content of one transaction; whatever it does not name stays.
type Change struct {
	// Manifest is the newly accepted manifest.
	Manifest *Manifest
	// Artifacts are kept by digest, which is verified first.
	Artifacts map[digest.Digest][]byte
	// Deployments replace those with the same id.
	Deployments []Deployment
	// Forget names the deployments to delete. Their reports stay.
	Forget []string
	// Reports are appended in this order; their Sequence is ignored. At most 16 of one deployment
	// wait, and 4096 with 4 MiB of bodies in total: the oldest steps are dropped first, then the
	// oldest failures. A deployment's newest report and its newest report of the end are dropped
	// only when nothing else is left.
	Reports []Report
	// Unheard: reports cannot be delivered now. This change then removes what newer reports of the
	// same deployment supersede: steps, and failures of a version but for the last two.
	Unheard bool
	// Journal is appended in this order; Sequence and Chain are ignored. At most 4096 entries with
	// 1 MiB are kept; the oldest are dropped.
	Journal []Entry
	// Settings are small records of any content; a nil value deletes one.
	Settings map[string][]byte
}

// Commit makes the change durable as a whole or, with an error, not at all. It writes only
// differences, and nothing if there are none; reports and journal entries always differ. Without
// space it fails with ErrFull. ErrAside is the exception: the change is durable and may be
// committed again without reports and journal entries. If the cause is lack of space, the file
// stays behind until the next call.
func (s *Store) Commit(verb string, c Change) error {
	if err := s.commit(verb, c); err != nil {
		return fmt.Errorf("cannot commit %q: %w", verb, err)
	}
	return nil
}

func (s *Store) commit(verb string, c Change) error {
	entries, err := c.entries()
	if err != nil {
		return err
	}
	for d, data := range c.Artifacts {
		if err := verify(d, data); err != nil {
			return err
		}
	}

	s.writing.Lock()
	defer s.writing.Unlock()

	var artifacts []digest.Digest
	var size int64 // of them
	err = s.view(func(tx *bolt.Tx) error {
		entries = slices.DeleteFunc(entries, func(e entry) bool { return e.stored(tx) })
		for _, d := range slices.Sorted(maps.Keys(c.Artifacts)) {
			if !artifactStored(tx, d, c.Artifacts[d]) {
				artifacts, size = append(artifacts, d), size+int64(len(c.Artifacts[d]))
			}
		}
		return nil
	})
	if err == nil && size > 0 {
		err = s.room.admit(s.used(), size)
	}
	if err != nil {
		return err
	}
	if len(entries)+len(artifacts)+len(c.Reports)+len(c.Journal) > 0 {
		var (
			dropped int
			noted   *appended
		)
		err := s.update(verb, func(w *writing) (err error) {
			for _, d := range artifacts {
				if err := putArtifact(w, d, c.Artifacts[d]); err != nil {
					return err
				}
			}
			for _, e := range entries {
				if err := e.put(w); err != nil {
					return err
				}
			}
			if dropped, err = appendReports(w, c.Reports, c.Unheard); err != nil {
				return err
			}
			noted, err = s.journal.append(w.Tx, c.Journal)
			return err
		})
		if err != nil {
			return err
		}
		s.dropped.Add(int64(dropped))
		s.journal.done(noted)
	}

	if len(c.Settings) > 0 || s.settingsBehind {
		s.settingsBehind = s.keepSettings() != nil
	}
	if err := s.keepAccepted(); err != nil && c.Manifest != nil && !errors.Is(err, ErrFull) {
		return fmt.Errorf("%w: %w", ErrAside, err)
	}
	return nil
}

// entry is one key with its new sealed value; nil deletes the key.
type entry struct {
	bucket, key string
	value       []byte
}

func newEntry(bucket, key string, value []byte) entry {
	return entry{bucket, key, sealed(bucket, []byte(key), value)}
}

func (c Change) entries() ([]entry, error) {
	var entries []entry
	if c.Manifest != nil {
		value, err := encode(*c.Manifest)
		if err != nil {
			return nil, fmt.Errorf("manifest: %w", err)
		}
		entries = append(entries, newEntry(bucketManifest, keyAccepted, value))
	}

	named := make(map[string]bool)
	name := func(id string) error {
		if named[id] {
			return errors.New("duplicate in this change")
		}
		named[id] = true
		return checkKey(id)
	}
	for _, d := range c.Deployments {
		d.Since = d.Since.UTC() // one instant has one encoding
		value, err := encode(d)
		if err = errors.Join(name(d.ID), err); err != nil {
			return nil, fmt.Errorf("deployment %q: %w", d.ID, err)
		}
		entries = append(entries, newEntry(bucketDeployments, d.ID, value))
	}
	for _, id := range c.Forget {
		if err := name(id); err != nil {
			return nil, fmt.Errorf("deployment %q: %w", id, err)
		}
		entries = append(entries, entry{bucketDeployments, id, nil})
	}

	for _, name := range slices.Sorted(maps.Keys(c.Settings)) {
		value := c.Settings[name]
		if err := errors.Join(checkKey(name), checkSize(value)); err != nil {
			return nil, fmt.Errorf("setting %q: %w", name, err)
		}
		e := entry{bucketSettings, name, nil}
		if value != nil {
			e = newEntry(bucketSettings, name, value)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func (e entry) stored(tx *bolt.Tx) bool {
	now := tx.Bucket([]byte(e.bucket)).Get([]byte(e.key))
	return (now == nil) == (e.value == nil) && bytes.Equal(now, e.value)
}

func (e entry) put(w *writing) error {
	if e.value == nil {
		return w.remove(e.bucket, []byte(e.key))
	}
	return w.put(e.bucket, []byte(e.key), e.value)
}
