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
	maxRecord = 1 << 20
	// maxKey bounds deployment ids and names of settings.
	maxKey = 512
)

// Manifest is the last accepted manifest.
type Manifest struct {
	// Epoch counts how often an operator had a lower version accepted. Within a scope, the greater
	// epoch is newer, then the greater version. 0 is omitted, since versions of this program that
	// do not know the field reject it.
	Epoch   uint64        `json:"epoch,omitempty"`
	Version uint64        `json:"version"`
	ETag    string        `json:"etag,omitempty"`
	Digest  digest.Digest `json:"digest,omitempty"`
	// Scope identifies the publisher. Versions of different scopes do not compare.
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

// Staged is what staging pinned for one component.
type Staged struct {
	Component string `json:"component"`
	// Project is the component's project name in the runtime.
	Project string `json:"project"`
	// Package is an artifact in this store: the Compose archive or file.
	Package digest.Digest `json:"package,omitempty"`
	// Signed: the package's signature was verified when it arrived.
	Signed bool `json:"signed,omitempty"`
	// Images maps each image reference, as written, to the digest pulled for it.
	Images map[string]digest.Digest `json:"images,omitempty"`
	// Sources maps each device path that it mounts to where that led at admission.
	Sources map[string]string `json:"sources,omitempty"`
}

// Revision is one immutable state of a deployment.
type Revision struct {
	// Digest identifies the deployment document, an artifact in this store.
	Digest digest.Digest `json:"digest,omitempty"`
	// Version is that of the manifest it came with.
	Version uint64 `json:"version,omitempty"`
	// Staged is empty until every byte of the revision is on the device.
	Staged []Staged `json:"staged,omitempty"`
	// Summary holds findings of staging; nil: not staged, or by an earlier version of this program.
	Summary *Summary `json:"summary,omitempty"`
}

// Summary answers frequent questions about a staged revision without loading its packages.
type Summary struct {
	// Reserved is what it reserves on the device.
	Reserved Resources `json:"reserved,omitzero"`
	// Unread names parameters that no service reads.
	Unread []string `json:"unread,omitempty"`
	// Before is the document of the revision that it is compared with; empty: none.
	Before digest.Digest `json:"before,omitempty"`
	// Effects is an artifact in this store, opaque here: what happens to the deployment when the
	// revision replaces Before, and when it is removed.
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
	// Place in the manifest, from 1; 0: not listed, or recorded by an earlier version.
	Place int `json:"place,omitempty"`
	// Name in the document of Desired; empty: unreadable, or recorded by an earlier version.
	Name string `json:"name,omitempty"`
	// Desired is what should run.
	Desired Revision `json:"desired"`
	// Active is the last revision that worked, and runs or ran.
	Active *Revision `json:"active,omitempty"`
	// Former worked before Active and is kept for a rollback; nil: none.
	Former *Revision `json:"former,omitempty"`
	// Return is the way back after a failed attempt to apply Desired, while Active does not run or,
	// if nothing has worked yet, while something still does; opaque here.
	Return string `json:"return,omitempty"`
	// Found: the record was lost and made again while something ran; no revision has worked since.
	Found bool `json:"found,omitempty"`
	// Attempts counts how often applying Desired was started.
	Attempts int `json:"attempts,omitempty"`
	// Unpacking is set while images of Desired are unpacked, and stays if the agent ends meanwhile.
	Unpacking *Unpacking `json:"unpacking,omitempty"`
	// Answers are the site's decisions on revisions, oldest first.
	Answers []Answer `json:"answers,omitempty"`
	// Adopted is the manifest version that was reported as adopted.
	Adopted    uint64      `json:"adopted,omitempty"`
	Components []Component `json:"components,omitempty"`
	Fault      *Fault      `json:"fault,omitempty"`
	// Judged identifies the rules that finally refused the document; opaque here.
	Judged string `json:"judged,omitempty"`
	// Waits is the reported reason for being pending; nil: none was reported.
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

// Answer is the site's decision on one change of a deployment.
type Answer struct {
	// Revision is the digest of the document that the change leads to or, for a removal, away from.
	Revision digest.Digest `json:"revision"`
	Change   string        `json:"change"`  // the kind of change, opaque here
	Verdict  string        `json:"verdict"` // opaque here
	By       string        `json:"by"`      // who said so
	Reason   string        `json:"reason,omitempty"`
	At       time.Time     `json:"at"`
}

// newer reports whether m was accepted after other; both have the same scope.
func (m Manifest) newer(other Manifest) bool {
	return m.Epoch > other.Epoch || m.Epoch == other.Epoch && m.Version > other.Version
}

// Report is one message in the outbox.
type Report struct {
	// Sequence is assigned by the store; it orders reports.
	Sequence   uint64
	Deployment string
	// Version is what the report is about: failures of one version count as alike.
	Version uint64
	Weight  Weight
	Body    []byte
}

// Weight classifies reports by what is lost if one is never delivered.
type Weight uint8

// The weights.
const (
	Step    Weight = iota // a step on the way, superseded by any newer report
	Failure               // something failed
	End                   // the deployment is gone; no other report says so
)

// record lists the types stored as JSON.
type record interface {
	Manifest | Deployment | Entry | journalEnds

	check() error
}

// encode rejects what decode would reject. Equal records have equal encodings.
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

// checkDigest accepts an empty digest: none yet.
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
