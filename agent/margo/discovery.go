package margo

import (
	"fmt"
	"net/url"
)

// MaxDiscoveryBytes bounds a discovery document.
const MaxDiscoveryBytes = 64 << 10

// DiscoveryDocument points a client to the trust bundle of one trust domain
// (ID-18).
type DiscoveryDocument struct {
	TrustDomain    string `json:"trustDomain"`
	TrustBundleURI string `json:"trustBundleUri"` // absolute, https
}

// ParseDiscoveryDocument reads a discovery document. Members that nobody knows
// are ignored (ERR-07).
func ParseDiscoveryDocument(body []byte) (*DiscoveryDocument, error) {
	root, err := parseJSON(body, limits{bytes: MaxDiscoveryBytes, depth: 32, nodes: 4096})
	if err != nil {
		return nil, fmt.Errorf("cannot accept discovery document: %w", Errors{{Message: err.Error()}})
	}
	var (
		r reader
		d DiscoveryDocument
		n = node{tree: root}
	)
	if r.is(object, "ID-18", n) {
		d.TrustDomain = r.text("ID-18", n.member("trustDomain"))
		d.TrustBundleURI = r.url(n.member("trustBundleUri"))
		if d.TrustBundleURI != "" && !isHTTPS(d.TrustBundleURI) {
			r.refuse("ID-18", n.member("trustBundleUri"), "must be an absolute https URL without a user or fragment")
		}
	}
	if err := r.refused.err(); err != nil {
		return nil, fmt.Errorf("cannot accept discovery document: %w", err)
	}
	return &d, nil
}

// isHTTPS reports whether s is an absolute https URL that names no secret.
func isHTTPS(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Scheme == "https" && u.Opaque == "" && u.Hostname() != "" && u.User == nil && u.Fragment == ""
}
