package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/opencontainers/go-digest"
)

const (
	// maxRecord bounds the encoded size of one record.
	maxRecord = 1 << 20
	// maxKey bounds deployment ids and names of settings.
	maxKey = 512
)

// Manifest is the last manifest that was accepted.
type Manifest struct {
	// Epoch counts how often an operator had a lower version accepted. Within a
	// scope the greater epoch is the newer one, and then the greater version. It
	// is left out while it is 0, as versions of this program that do not know it
	// want it; they refuse to read any other.
	Epoch   uint64        `json:"epoch,omitempty"`
	Version uint64        `json:"version"`
	ETag    string        `json:"etag,omitempty"`
	Digest  digest.Digest `json:"digest,omitempty"`
	// Scope is who published it. Versions of different scopes do not compare.
	Scope string `json:"scope,omitempty"`
}

// Fault is why something failed.
type Fault struct {
	Code    string `json:"code"`
	Source  string `json:"source,omitempty"`
	Message string `json:"message,omitempty"`
}

// Component is the last known state of one component of a deployment.
type Component struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Fault *Fault `json:"fault,omitempty"`
}

// Staged is what staging one component pinned.
type Staged struct {
	Component string `json:"component"`
	// Project is the component's project name in the runtime.
	Project string `json:"project"`
	// Package is an artifact in this store: the Compose archive or file.
	Package digest.Digest `json:"package,omitempty"`
	// Signed says that the package was verified by a signature when it came.
	Signed bool `json:"signed,omitempty"`
	// Images maps each image reference, as written, to the digest pulled for it.
	Images map[string]digest.Digest `json:"images,omitempty"`
	// Sources maps each path of the device that it mounts to where that led when
	// it was admitted.
	Sources map[string]string `json:"sources,omitempty"`
}

// Revision is one immutable state of a deployment.
type Revision struct {
	// Digest is that of the deployment document, an artifact in this store.
	Digest digest.Digest `json:"digest,omitempty"`
	// Version is that of the manifest it came with.
	Version uint64 `json:"version,omitempty"`
	// Staged is empty until every byte of the revision is on the device.
	Staged []Staged `json:"staged,omitempty"`
	// Summary is what was found out about it when it was staged; nil: an earlier
	// version of this program staged it, or it is not staged.
	Summary *Summary `json:"summary,omitempty"`
}

// Summary is what is asked about a staged revision time and again, so that its
// packages need not be loaded for that.
type Summary struct {
	// Reserved is what it reserves of the device.
	Reserved Resources `json:"reserved,omitzero"`
	// Unread names parameters that no service reads.
	Unread []string `json:"unread,omitempty"`
	// Before is the document of the revision that it is compared with; empty: none.
	Before digest.Digest `json:"before,omitempty"`
	// Effects is an artifact in this store, opaque here: what becomes of the deployment
	// when the revision takes the place of Before, and when it goes.
	Effects digest.Digest `json:"effects,omitempty"`
}

// Resources are shares of the device.
type Resources struct {
	CPUs    float64 `json:"cpus,omitempty"`    // cores
	Memory  int64   `json:"memory,omitempty"`  // bytes
	Storage int64   `json:"storage,omitempty"` // bytes
}

// Deployment is what the agent knows about one deployment.
type Deployment struct {
	// ID is spelled as in the manifest.
	ID string `json:"-"`
	// Phase is a state of the agent's state machine, opaque here.
	Phase string `json:"phase"`
	// Place is where the manifest lists it, from 1; 0: nowhere, or an earlier version
	// of this program made the record.
	Place int `json:"place,omitempty"`
	// Name is that in the document of Desired; empty: it has none that can be read, or
	// an earlier version of this program made the record.
	Name string `json:"name,omitempty"`
	// Desired is what shall run.
	Desired Revision `json:"desired"`
	// Active is the last revision that worked, and runs or ran.
	Active *Revision `json:"active,omitempty"`
	// Former worked before Active and is kept for a way back; nil: there is none.
	Former *Revision `json:"former,omitempty"`
	// Return says that Active does not run, or something does although nothing has
	// worked, since Desired was begun to be applied and did not work, and what becomes
	// of that; opaque here.
	Return string `json:"return,omitempty"`
	// Found says that something of it ran already when this record was made, since
	// the one before was lost, and that nothing has worked since.
	Found bool `json:"found,omitempty"`
	// Attempts counts how often Desired was begun to be applied.
	Attempts int `json:"attempts,omitempty"`
	// Unpacking says that images of Desired are being unpacked, or that the agent
	// ended while they were.
	Unpacking *Unpacking `json:"unpacking,omitempty"`
	// Answers are what the site has said about revisions, oldest first.
	Answers []Answer `json:"answers,omitempty"`
	// Adopted is the manifest version that was reported as adopted.
	Adopted    uint64      `json:"adopted,omitempty"`
	Components []Component `json:"components,omitempty"`
	Fault      *Fault      `json:"fault,omitempty"`
	// Judged names what the document was judged by when it was refused for good;
	// opaque here.
	Judged string `json:"judged,omitempty"`
	// Waits is why it is pending, as it was reported; nil: that was not.
	Waits *Fault `json:"waits,omitempty"`
	// Since is the time of the last change of Phase.
	Since time.Time `json:"since,omitzero"`
}

// Unpacking is an attempt to unpack the images of a component.
type Unpacking struct {
	Component string `json:"component"`
	Layers    int    `json:"layers"` // that were to be unpacked when it began
	Times     int    `json:"times"`  // attempts in a row that began with as many
}

// Answer is what the site has said about one change of a deployment.
type Answer struct {
	// Revision is the digest of the document that the change leads to, or, of a
	// removal, leads away from.
	Revision digest.Digest `json:"revision"`
	Change   string        `json:"change"`  // the kind of change, opaque here
	Verdict  string        `json:"verdict"` // opaque here
	By       string        `json:"by"`      // who said so
	Reason   string        `json:"reason,omitempty"`
	At       time.Time     `json:"at"`
}

// newer says that m was accepted after other, of the same scope.
func (m Manifest) newer(other Manifest) bool {
	return m.Epoch > other.Epoch || m.Epoch == other.Epoch && m.Version > other.Version
}

// Report is one message that waits in the outbox.
type Report struct {
	// Sequence is given by the store; it orders reports.
	Sequence   uint64
	Deployment string
	// Version is what the report is about: failures of one version are alike.
	Version uint64
	Weight  Weight
	Body    []byte
}

// Weight says what would be lost with a report that is never delivered.
type Weight uint8

// The weights.
const (
	Step    Weight = iota // a step on the way, which any newer report makes good for
	Failure               // something failed
	End                   // the deployment is gone: nothing else will ever tell it
)

// record is what the store keeps as JSON.
type record interface {
	Manifest | Deployment | Entry | journalEnds

	check() error
}

// encode refuses what decode would refuse. Equal records have equal encodings.
func encode[R record](r R) ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return data, checkSize(data)
}

func decode[R record](data []byte) (R, error) {
	var r, none R
	if err := checkSize(data); err != nil {
		return none, fmt.Errorf("%w: %v", ErrCorrupt, err)
	}
	in := json.NewDecoder(bytes.NewReader(data))
	in.DisallowUnknownFields()
	if err := in.Decode(&r); err != nil {
		return none, fmt.Errorf("%w: %v", ErrCorrupt, err)
	}
	if _, err := in.Token(); err != io.EOF {
		return none, fmt.Errorf("%w: unexpected data after the record", ErrCorrupt)
	}
	if err := r.check(); err != nil {
		return none, fmt.Errorf("%w: %v", ErrCorrupt, err)
	}
	return r, nil
}

// readBeside reads the record in a file beside the database; nil where there is none.
func readBeside[R record](path, what string) (*R, error) {
	data, err := readFile(path, maxRecord+1)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var r R
	if err == nil {
		r, err = decode[R](data)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s from %q: %w", what, path, err)
	}
	return &r, nil
}

// keepBeside writes a file beside the database, unless it has this content already.
func keepBeside(path string, data []byte) error {
	if now, err := readFile(path, int64(len(data))+1); err == nil && bytes.Equal(now, data) {
		return nil
	}
	return ReplaceFile(path, 0o600, bytes.NewReader(data))
}

func (m Manifest) check() error {
	return checkDigest("manifest", m.Digest)
}

func (d Deployment) check() error {
	var errs []error
	for _, r := range []*Revision{&d.Desired, d.Active, d.Former} {
		if r != nil {
			errs = append(errs, r.check())
		}
	}
	for _, a := range d.Answers {
		errs = append(errs, checkDigest("answered revision", a.Revision))
	}
	return errors.Join(errs...)
}

func (r Revision) check() error {
	errs := []error{checkDigest("document", r.Digest)}
	for _, s := range r.Staged {
		errs = append(errs, checkDigest("package of component "+s.Component, s.Package))
		for image, d := range s.Images {
			errs = append(errs, checkDigest("image "+image, d))
		}
	}
	if s := r.Summary; s != nil {
		errs = append(errs, checkDigest("revision compared with", s.Before), checkDigest("effects", s.Effects))
	}
	return errors.Join(errs...)
}

func (r Report) check() error {
	if len(r.Deployment) > maxKey {
		return fmt.Errorf("its id has %d bytes; the limit is %d", len(r.Deployment), maxKey)
	}
	if r.Weight > End {
		return fmt.Errorf("unknown weight %d", r.Weight)
	}
	return nil
}

// checkDigest lets an empty digest pass: it says that there is none yet.
func checkDigest(of string, d digest.Digest) error {
	if d == "" {
		return nil
	}
	if err := d.Validate(); err != nil {
		return fmt.Errorf("digest of %s: %w", of, err)
	}
	return nil
}

func checkKey(key string) error {
	if key == "" {
		return errors.New("the name is empty")
	}
	if len(key) > maxKey {
		return fmt.Errorf("the name has %d bytes; the limit is %d", len(key), maxKey)
	}
	return nil
}

func checkSize(data []byte) error {
	if len(data) > maxRecord {
		return fmt.Errorf("it has %d bytes; the limit is %d", len(data), maxRecord)
	}
	return nil
}
