package pki

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/margolite/margolite/agent/identity"
)

// ServerAuthority signs ordinary certificates: of servers, known by DNS names
// and addresses, and of clients that sign what they send (rc.1 and rc.2).
type ServerAuthority struct{ anchor }

// NewServerAuthority makes an authority whose certificates are valid around the
// given time. Names are for people only.
func NewServerAuthority(name string, at time.Time) (*ServerAuthority, error) {
	a := &ServerAuthority{anchor{at: at}}
	return a, a.make(name)
}

// ParseServerAuthority brings back an authority from what PEM returned.
// Certificates it issued before stay valid.
func ParseServerAuthority(data []byte, at time.Time) (*ServerAuthority, error) {
	a := &ServerAuthority{anchor{at: at}}
	return a, a.parse(data)
}

// Pool holds the root alone.
func (a *ServerAuthority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Root)
	return pool
}

// IssueServer makes the certificate of a server for DNS names and IP addresses.
func (a *ServerAuthority) IssueServer(hosts []string, options ...Option) (*SVID, error) {
	return a.issue("server", x509.ExtKeyUsageServerAuth, append([]Option{Hosts(hosts...)}, options...))
}

// IssueSigner makes the certificate of a client that signs its requests.
func (a *ServerAuthority) IssueSigner(name string, options ...Option) (*SVID, error) {
	return a.issue(name, x509.ExtKeyUsageClientAuth, options)
}

func (a *ServerAuthority) issue(name string, usage x509.ExtKeyUsage, options []Option) (*SVID, error) {
	return a.anchor.issue(a.Root, a.key, name, pkix.Name{CommonName: name}, append([]Option{ExtKeyUsage(usage)}, options...)...)
}

// Hosts replaces the DNS names and IP addresses.
func Hosts(hosts ...string) Option {
	return func(r *request) {
		r.Certificate.DNSNames, r.Certificate.IPAddresses = nil, nil
		for _, host := range hosts {
			if ip := net.ParseIP(host); ip != nil {
				r.Certificate.IPAddresses = append(r.Certificate.IPAddresses, ip)
			} else {
				r.Certificate.DNSNames = append(r.Certificate.DNSNames, host)
			}
		}
	}
}

// unknownAuthority is the name of a flaw: what is wrong with a certificate that a server
// shows on purpose.
const unknownAuthority = "unknown-authority" // of the right name

// flaws are those of validity, which every certificate can have.
func (a *anchor) flaws() map[string]Option {
	return map[string]Option{
		"expired":        Valid(a.at.Add(-2*backdated), a.at.Add(-time.Minute)),
		"not-yet-valid":  Valid(a.at.Add(svidLife), a.at.Add(2*svidLife)),
		unknownAuthority: func(*request) {},
	}
}

// flaws are those that an SVID of a WFM can have.
func (a *Authority) flaws(wfmID string) map[string]Option {
	uri := func(domain, client string) string {
		return identity.ID{TrustDomain: domain, WFM: wfmID, Client: client}.String()
	}
	own := uri(a.TrustDomain, "")
	all := a.anchor.flaws()
	maps.Copy(all, map[string]Option{
		"ca":             IsCA, // the leaf is an authority itself
		"foreign-domain": URIs(uri("foreign."+a.TrustDomain, "")),
		"two-uris":       URIs(own, own+"-too"),
		"no-uri":         URIs(),
		"wrong-id":       URIs(own + "-other"), // another WFM of the trust domain
		"client-id":      URIs(uri(a.TrustDomain, "client")),
	})
	return all
}

// Flaws are those that IssueFlawed knows.
func (a *Authority) Flaws() []string { return slices.Sorted(maps.Keys(a.flaws(""))) }

// IssueFlawed makes an SVID of a WFM that clients have to refuse.
func (a *Authority) IssueFlawed(wfmID, flaw string) (tls.Certificate, error) {
	return flawed(a.flaws(wfmID), flaw, func(option Option) (_ *SVID, err error) {
		issuer := a
		if flaw == unknownAuthority {
			if issuer, err = NewAuthority(a.TrustDomain, a.at); err != nil {
				return nil, err
			}
		}
		return issuer.IssueWFM(wfmID, option)
	})
}

func flawed(flaws map[string]Option, flaw string, issue func(Option) (*SVID, error)) (tls.Certificate, error) {
	option, ok := flaws[flaw]
	if !ok {
		return tls.Certificate{}, fmt.Errorf("cannot issue certificate: no flaw %q", flaw)
	}
	svid, err := issue(option)
	if err != nil {
		return tls.Certificate{}, err
	}
	return svid.TLS(), nil
}

// flaws are those that a server's certificate can have.
func (a *ServerAuthority) flaws() map[string]Option {
	all := a.anchor.flaws()
	all["other-host"] = Hosts("other.example")
	return all
}

// Flaws are those that IssueFlawed knows.
func (a *ServerAuthority) Flaws() []string { return slices.Sorted(maps.Keys(a.flaws())) }

// IssueFlawed makes a server's certificate that clients have to refuse.
func (a *ServerAuthority) IssueFlawed(hosts []string, flaw string) (tls.Certificate, error) {
	return flawed(a.flaws(), flaw, func(option Option) (_ *SVID, err error) {
		issuer := a
		if flaw == unknownAuthority {
			if issuer, err = NewServerAuthority(a.Root.Subject.CommonName, a.at); err != nil {
				return nil, err
			}
		}
		return issuer.IssueServer(hosts, option)
	})
}
