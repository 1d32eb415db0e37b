package pki

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/margolite/margolite/agent/identity"
)

// ServerAuthority signs ordinary certificates: of servers, known by DNS names
// and addresses, and of clients that sign what they send (rc.1 and rc.2).
type ServerAuthority struct {
	Root *x509.Certificate

	at  time.Time
	key crypto.Signer
}

// NewServerAuthority makes an authority whose certificates are valid around the
// given time. Names are for people only.
func NewServerAuthority(name string, at time.Time) (*ServerAuthority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := authorityTemplate(name, at)
	root, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("cannot make root %s: %w", name, err)
	}
	return &ServerAuthority{Root: root, at: at, key: key}, nil
}

// ParseServerAuthority brings back an authority from what PEM returned.
// Certificates it issued before stay valid.
func ParseServerAuthority(data []byte, at time.Time) (*ServerAuthority, error) {
	a, err := ParseAuthority("", data, at)
	if err != nil {
		return nil, err
	}
	return &ServerAuthority{Root: a.Root, at: at, key: a.rootKey}, nil
}

// PEM is the root with its private key, for ParseServerAuthority.
func (a *ServerAuthority) PEM() ([]byte, error) {
	key, err := keyPEM(a.key)
	if err != nil {
		return nil, err
	}
	return append(certificatePEM(a.Root), key...), nil
}

// RootPEM is the root as a file of anchors holds it.
func (a *ServerAuthority) RootPEM() []byte { return certificatePEM(a.Root) }

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
	r := &request{Certificate: &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		NotBefore:   a.at.Add(-backdated),
		NotAfter:    a.at.Add(svidLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{usage},

		BasicConstraintsValid: true,
	}}
	for _, option := range options {
		option(r)
	}
	if r.key == nil {
		key, err := newKey()
		if err != nil {
			return nil, err
		}
		r.key = key
	}
	leaf, err := sign(r.Certificate, a.Root, r.key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("cannot issue certificate of %s: %w", name, err)
	}
	return &SVID{ID: name, Chain: []*x509.Certificate{leaf}, Key: r.key}, nil
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

// Flaw is what is wrong with a certificate that a server shows on purpose.
type Flaw string

// The flaws. Those of SPIFFE IDs make no sense with ordinary certificates.
const (
	Expired          Flaw = "expired"
	NotYetValid      Flaw = "not-yet-valid"
	UnknownAuthority Flaw = "unknown-authority" // of the right name
	CALeaf           Flaw = "ca"                // the leaf is an authority itself
	ForeignDomain    Flaw = "foreign-domain"    // another trust domain
	TwoURIs          Flaw = "two-uris"
	NoURI            Flaw = "no-uri"
	WrongID          Flaw = "wrong-id" // another WFM of the trust domain
	ClientID         Flaw = "client-id"
	OtherHost        Flaw = "other-host" // of ordinary certificates only
)

// Flaws are those that IssueFlawed of an Authority knows.
func (a *Authority) Flaws() []string {
	return flaws(Expired, NotYetValid, UnknownAuthority, CALeaf, ForeignDomain, TwoURIs, NoURI, WrongID, ClientID)
}

// Flaws are those that IssueFlawed of a ServerAuthority knows.
func (a *ServerAuthority) Flaws() []string {
	return flaws(Expired, NotYetValid, UnknownAuthority, OtherHost)
}

func flaws(list ...Flaw) (names []string) {
	for _, flaw := range list {
		names = append(names, string(flaw))
	}
	slices.Sort(names)
	return names
}

// IssueFlawed makes an SVID of a WFM that clients have to refuse.
func (a *Authority) IssueFlawed(wfmID, flaw string) (tls.Certificate, error) {
	id := identity.ID{TrustDomain: a.TrustDomain, WFM: wfmID}
	var option Option
	issuer := a
	switch Flaw(flaw) {
	case Expired:
		option = Valid(a.at.Add(-2*backdated), a.at.Add(-time.Minute))
	case NotYetValid:
		option = Valid(a.at.Add(svidLife), a.at.Add(2*svidLife))
	case UnknownAuthority:
		var err error
		if issuer, err = NewAuthority(a.TrustDomain, a.at); err != nil {
			return tls.Certificate{}, err
		}
	case CALeaf:
		option = IsCA
	case ForeignDomain:
		id.TrustDomain = "foreign." + id.TrustDomain
	case TwoURIs:
		option = URIs(id.String(), id.String()+"-too")
	case NoURI:
		option = URIs()
	case WrongID:
		id.WFM += "-other"
	case ClientID:
		id.Client = "client"
	default:
		return tls.Certificate{}, fmt.Errorf("cannot issue SVID: no flaw %q", flaw)
	}
	var options []Option
	if option != nil {
		options = append(options, option)
	}
	svid, err := issuer.Issue(id.String(), options...)
	if err != nil {
		return tls.Certificate{}, err
	}
	return svid.TLS(), nil
}

// IssueFlawed makes a server's certificate that clients have to refuse.
func (a *ServerAuthority) IssueFlawed(hosts []string, flaw string) (tls.Certificate, error) {
	var option Option
	issuer := a
	switch Flaw(flaw) {
	case Expired:
		option = Valid(a.at.Add(-2*backdated), a.at.Add(-time.Minute))
	case NotYetValid:
		option = Valid(a.at.Add(svidLife), a.at.Add(2*svidLife))
	case UnknownAuthority:
		var err error
		if issuer, err = NewServerAuthority(a.Root.Subject.CommonName, a.at); err != nil {
			return tls.Certificate{}, err
		}
	case OtherHost:
		option = Hosts("other.example")
	default:
		return tls.Certificate{}, fmt.Errorf("cannot issue certificate: no flaw %q", flaw)
	}
	var options []Option
	if option != nil {
		options = append(options, option)
	}
	certificate, err := issuer.IssueServer(hosts, options...)
	if err != nil {
		return tls.Certificate{}, err
	}
	return certificate.TLS(), nil
}
