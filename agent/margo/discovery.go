package margo

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// MaxDiscoveryBytes bounds a discovery document.
const MaxDiscoveryBytes = 64 << 10

// DiscoveryDocument points a client to the trust bundle of one trust domain (ID-18).
type DiscoveryDocument struct {
	TrustDomain    string `json:"trustDomain"`
	TrustBundleURI string `json:"trustBundleUri"` // absolute, https
}

// ParseDiscoveryDocument reads a discovery document, ignoring unknown members (ERR-07).
func ParseDiscoveryDocument(body []byte) (*DiscoveryDocument, error) {
	return accept("discovery document", parseJSON, body, limits{bytes: MaxDiscoveryBytes, depth: 32, nodes: 4096}, (*reader).discovery)
}

func (r *reader) discovery(n node) *DiscoveryDocument {
	if !r.is(object, "ID-18", n) {
		return nil
	}
	uri := n.member("trustBundleUri")
	d := &DiscoveryDocument{TrustDomain: r.text("ID-18", n.member("trustDomain")), TrustBundleURI: r.text("A-60", uri)}
	if _, err := HTTPS(d.TrustBundleURI); d.TrustBundleURI != "" && (err != nil || !isPrintable(d.TrustBundleURI)) {
		r.refuse("ID-18", uri, "must be an absolute https URL of printable ASCII without a user or fragment")
	}
	return d
}

// HTTPS reads an absolute https URL without user or fragment. The error shows no password.
func HTTPS(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil && strings.Contains(s, "@"):
		return nil, errors.New("it is malformed") // what is wrong may be a password
	case err != nil:
		return nil, errors.Unwrap(err) // the rest repeats the URL
	case u.Scheme != "https" || u.Opaque != "" || u.Hostname() == "":
		return nil, fmt.Errorf("%q is not https://<host>", u.Redacted())
	case u.User != nil || u.Fragment != "":
		return nil, fmt.Errorf("%q has a user or a fragment", u.Redacted())
	}
	return u, nil
}
