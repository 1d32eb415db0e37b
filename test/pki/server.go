package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"time"
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
