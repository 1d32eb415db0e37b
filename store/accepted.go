package store

import (
	"errors"
	"fmt"
)

const keyAccepted = "accepted"

// Manifest returns the accepted manifest, and false while there is none.
//
// It is kept twice, in the database and in a file beside it, and the greater
// epoch and version count as long as both have the same scope; the database
// counts when they differ in it. Where the file counts, the ETag is empty: the database was
// lost or is older and does not know what that manifest contains, so it has to
// be fetched again. A copy that cannot be read is the error that comes with the
// other one.
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

// keepAccepted has the file beside the database catch up with it: the file keeps the
// version when the database is lost. It leaves the ETag out: with it, an agent without
// a database would ask the WFM whether anything changed, and be told that nothing did.
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
