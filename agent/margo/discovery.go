package margo

import "net/url"

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
	return accept("discovery document", body, limits{bytes: MaxDiscoveryBytes, depth: 32, nodes: 4096}, (*reader).discovery)
}

func (r *reader) discovery(n node) *DiscoveryDocument {
	if !r.is(object, "ID-18", n) {
		return nil
	}
	d := &DiscoveryDocument{TrustDomain: r.text("ID-18", n.member("trustDomain"))}
	uri := n.member("trustBundleUri")
	if r.text("A-60", uri) != "" {
		d.TrustBundleURI = r.url(uri)
	}
	if d.TrustBundleURI != "" && !isHTTPS(d.TrustBundleURI) {
		r.refuse("ID-18", uri, "must be an absolute https URL without a user or fragment")
	}
	return d
}

// isHTTPS reports whether s is an absolute https URL that names no secret.
func isHTTPS(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Scheme == "https" && u.Opaque == "" && u.Hostname() != "" && u.User == nil && u.Fragment == ""
}
