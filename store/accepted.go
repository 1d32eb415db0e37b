package store

import (
	"errors"
	"fmt"
)

const keyAccepted = "accepted"

// Manifest returns the accepted manifest, and false while there is none.
//
// Of the two copies, in the database and in a file beside it, the greater epoch and version count
// if both have the same scope; otherwise the database counts. If the file counts, the ETag is
// empty: the database was lost or is older, so the manifest must be fetched again. The error about
// one unreadable copy comes with the other.
func (s *Store) Manifest() (Manifest, bool, error) {
	stored, known, storedErr := s.storedManifest()
	aside, asideErr := readBeside[Manifest](s.files.accepted(), "accepted manifest")
	err := errors.Join(storedErr, asideErr)
	if aside == nil {
		return stored, known, err
	}
	rotten := known && aside.Digest != "" && aside.Digest == stored.Digest && aside.Version != stored.Version // a manifest has one version
	if !rotten && (!known || aside.Scope == stored.Scope && aside.newer(stored)) {
		return *aside, true, err
	}
	return stored, known, err
}

func (s *Store) storedManifest() (m Manifest, known bool, err error) {
	data, err := s.record(bucketManifest, keyAccepted)
	if err == nil && data != nil {
		m, err = decode[Manifest](data)
	}
	if err != nil {
		return Manifest{}, false, fmt.Errorf("cannot read accepted manifest: %w", err)
	}
	return m, data != nil, nil
}

// keepAccepted updates the file that keeps the version if the database is lost. The file has no
// ETag: with one, an agent without a database would be told by the WFM that nothing changed.
func (s *Store) keepAccepted() error {
	m, known, _ := s.Manifest()
	if !known {
		return nil
	}
	m.ETag = ""
	data, err := encode(m)
	if err == nil {
		err = keepBeside(s.files.accepted(), append(data, '\n'))
	}
	if err != nil {
		return full(fmt.Errorf("cannot keep accepted manifest: %w", err))
	}
	return nil
}
