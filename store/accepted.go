package store

import (
	"bytes"
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
	aside, asideErr := s.accepted.read()
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

// keepAccepted has the file beside the database catch up with it.
func (s *Store) keepAccepted() error {
	if m, known, _ := s.Manifest(); known {
		return full(s.accepted.keep(m))
	}
	return nil
}

// acceptedFile is the path of the file that keeps the version of the accepted
// manifest when the database is lost. It leaves the ETag out: with it, an agent
// without a database would ask the WFM whether anything changed, and be told
// that nothing did.
type acceptedFile string

func (f acceptedFile) read() (*Manifest, error) {
	return readBeside[Manifest](string(f), "accepted manifest")
}

// keep writes m, unless the file says the same already.
func (f acceptedFile) keep(m Manifest) error {
	m.ETag = ""
	if now, err := f.read(); err == nil && now != nil && *now == m {
		return nil
	}
	data, err := encode(m)
	if err == nil {
		err = ReplaceFile(string(f), 0o600, bytes.NewReader(append(data, '\n')))
	}
	if err != nil {
		return fmt.Errorf("cannot keep accepted manifest in %q: %w", string(f), err)
	}
	return nil
}
