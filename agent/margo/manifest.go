package margo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
)

// Media types of the desired state.
const (
	ManifestMediaType = "application/vnd.margo.manifest.v1+json"
	BundleMediaType   = "application/vnd.margo.bundle.v1+tar+gzip"
)

// Bounds of a state manifest.
const (
	MaxManifestBytes = 1 << 20
	MaxDeployments   = 4096
)

// Digest names bytes by their SHA-256; parsers of this package accept only "sha256:" with 64
// lowercase hex digits (DS-23).
type Digest = digest.Digest

// StateManifest is the whole desired state of its client (DS-02): each deployment's digest.
type StateManifest struct {
	Version     uint64          `json:"manifestVersion"` // 1 ... 2^64-1, strictly increasing per client
	Bundle      *Bundle         `json:"bundle"`
	Deployments []DeploymentRef `json:"deployments"`

	// Refused are the entries that this device does not run because of their id alone.
	Refused []RefusedDeployment `json:"-"`
	// Warnings are faults of the document that were tolerated.
	Warnings Errors `json:"-"`
}

// Bundle refers to the archive of all documents of the manifest. It is nil exactly when the
// manifest lists no deployments.
type Bundle struct {
	MediaType string `json:"mediaType"` // always BundleMediaType
	Digest    Digest `json:"digest"`
	SizeBytes uint64 `json:"sizeBytes,omitempty"` // advisory (DS-13); 0: not given
	URL       string `json:"url"`                 // as written, or empty; checking it is the client's part
}

// RefusedDeployment is an entry whose id cannot be used: it fails alone.
type RefusedDeployment struct {
	DeploymentRef
	Reason string // for people
}

// CanReport reports whether a status can be posted about the entry.
func (d RefusedDeployment) CanReport() bool { return canReport(d.ID) }

// All gives every entry, refused ones included: a bundle holds the documents of all (DS-16).
func (m *StateManifest) All() []DeploymentRef {
	all := slices.Clone(m.Deployments)
	for _, d := range m.Refused {
		all = append(all, d.DeploymentRef)
	}
	return all
}

// RefuseOddIDs refuses the entries whose ids are safe, but not UUIDs.
func (m *StateManifest) RefuseOddIDs() {
	m.Deployments = slices.DeleteFunc(m.Deployments, func(ref DeploymentRef) bool {
		if IsUUID(ref.ID) {
			return false
		}
		m.Refused = append(m.Refused, RefusedDeployment{ref, fmt.Sprintf("deployment id %q is not a UUID", ref.ID)})
		return true
	})
}

// DeploymentRef refers to one ApplicationDeployment document.
type DeploymentRef struct {
	ID        string `json:"deploymentId"` // as the manifest spells it; compare with SameID
	Digest    Digest `json:"digest"`
	SizeBytes uint64 `json:"sizeBytes,omitempty"` // advisory (DS-13); 0: not given
	URL       string `json:"url"`                 // as written, or empty; checking it is the client's part
}

// ParseStateManifest reads a state manifest. Unknown members are ignored; any other fault refuses
// the whole manifest, since half a desired state is none. A null bundle beside deployments is
// refused although A-09 would allow a warning: the specification defines null for no deployments
// only, and a WFM that gets this wrong may have lost half of the manifest.
func ParseStateManifest(body []byte) (*StateManifest, error) {
	return accept("state manifest", parseJSON, body, limits{bytes: MaxManifestBytes, depth: 16, nodes: 8 * MaxDeployments}, (*reader).manifest)
}

func (r *reader) manifest(n node) *StateManifest {
	if !r.is(object, "DS-03", n) {
		return nil
	}
	m := &StateManifest{Version: r.version("A-23", n.member("manifestVersion"))}

	deployments := n.member("deployments")
	if r.is(list, "DS-15", deployments) {
		if len(deployments.items) > MaxDeployments {
			r.refuse("", deployments, "has more than %d entries", MaxDeployments)
			return nil
		}
		m.Deployments = make([]DeploymentRef, 0, len(deployments.items))
		seen := make(map[string]Digest, len(deployments.items))
		deployments.each(func(n node) {
			ref := r.deploymentRef(n)
			if ref.ID != "" && !IsDeploymentID(ref.ID) {
				m.Refused = append(m.Refused, RefusedDeployment{ref, fmt.Sprintf(
					"deployment id %s must be a UUID, or 1 to %d letters, digits and . _ ~ -", Shown(strconv.Quote(ref.ID), 80), maxDeploymentID,
				)})
				return
			}
			// One id is one deployment (DS-17), in any case. Repetition is harmless.
			id := strings.ToLower(ref.ID)
			if before, known := seen[id]; known && id != "" {
				if before == ref.Digest {
					r.tolerate("DS-17", n.member("deploymentId"), "occurs twice, with the same digest")
				} else {
					r.refuse("DS-17", n.member("deploymentId"), "occurs twice, with different digests")
				}
				return
			}
			seen[id] = ref.Digest
			m.Deployments = append(m.Deployments, ref)
		})
	}

	switch bundle := n.member("bundle"); {
	case bundle.kind == absent:
		r.refuse("A-09", bundle, "is missing; must be null without deployments")
	case bundle.kind == null && len(deployments.items) > 0:
		r.refuse("A-09", bundle, "must not be null with deployments")
	case bundle.kind == null:
		// no deployments (DS-15)
	case len(deployments.items) == 0:
		r.refuse("DS-15", bundle, "must be null without deployments")
	default:
		m.Bundle = r.bundle(bundle)
	}
	m.Warnings = r.tolerated
	return m
}

func (r *reader) bundle(n node) *Bundle {
	if !r.is(object, "A-08", n) {
		return nil
	}
	return &Bundle{
		MediaType: r.oneOf("A-60", n.member("mediaType"), BundleMediaType),
		Digest:    r.digest(n.member("digest")),
		SizeBytes: advisorySize(n.member("sizeBytes")),
		URL:       r.url(n.member("url")),
	}
}

func (r *reader) deploymentRef(n node) DeploymentRef {
	if !r.is(object, "DS-17", n) {
		return DeploymentRef{}
	}
	return DeploymentRef{
		ID:        r.deploymentID("A-60", n.member("deploymentId")),
		Digest:    r.digest(n.member("digest")),
		SizeBytes: advisorySize(n.member("sizeBytes")),
		URL:       r.url(n.member("url")),
	}
}

// digest reads a digest. Any form but the supported one refuses the manifest (DS-11, DS-23).
func (r *reader) digest(n node) Digest {
	s := r.text("DS-23", n)
	switch algorithm, _, ok := strings.Cut(s, ":"); {
	case s == "" || isDigest(s):
	case ok && algorithm != "sha256":
		r.refuse("DS-11", n, "must use the algorithm sha256, uses %.80q", algorithm)
	default:
		r.refuse("DS-23", n, "must be sha256: and 64 lowercase hex digits, is %.80q", s)
	}
	return Digest(s)
}

// advisorySize reads a size that is only a hint: an unreadable one counts as not given (DS-13).
func advisorySize(n node) uint64 {
	if n.kind != number {
		return 0
	}
	size, _ := parseUint(n.literal)
	return size
}

// url reads a URL that may lead anywhere, or be missing: its target is named by a digest.
func (r *reader) url(n node) string {
	if !n.given() || n.kind == text && n.literal == "" {
		r.tolerate("A-60", n, "is missing; the path is derived from the digest")
		return ""
	}
	s := r.text("A-60", n)
	if !isPrintable(s) {
		r.refuse("A-60", n, "must be a URL of at most 2048 printable ASCII characters")
	}
	return s
}
