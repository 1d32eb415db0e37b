package identity

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/margolite/margolite/runtime/pemfile"
)

// maxServerAnchors bounds the certificates in a file of anchors; a system's has about 150.
const maxServerAnchors = 512

// maxAnchorsSize bounds that file; a system's has about 220 KB.
const maxAnchorsSize = 1 << 20

// ServerOptions say which servers with an ordinary certificate are trusted: a WFM before rc.3,
// gateways that terminate TLS in front of any WFM, the identity service.
type ServerOptions struct {
	// CA is a file of anchors, provisioned out of band (AUTH-02). It takes precedence.
	CA string
	// Root is the WFM's own anchor, received over a trusted connection and kept, in any form that
	// ParseAnchors reads. If set it is the only anchor. With neither, the system's are used.
	Root []byte
	// TLS12 allows the fallback that is not on by default.
	TLS12 bool
	// Now is the clock that decides on validity; nil: the system's.
	Now func() time.Time

	// Name is the host of the one server that the configuration is for. Empty: it is for any, and
	// the fields below do not apply.
	Name string
	// WrongClock is that of Options. While the clock is wrong, a certificate that becomes valid
	// later is trusted: it was issued since. Early, if not nil, is told that time.
	WrongClock func() (floor time.Time, wrong bool)
	Early      func(time.Time)

	pins map[[sha256.Size]byte]bool // see ServiceOptions.Pins
}

// ServerTLS is the configuration for connections to such servers: host name and anchor are
// checked, and the device shows no certificate (AUTH-02, AUTH-03). A replaced file needs a new
// configuration. The error is an *Error, one of a handshake with another server a
// *tls.CertificateVerificationError.
func ServerTLS(o ServerOptions) (*tls.Config, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	config := newTLS(o.TLS12, o.Now)
	data, from := o.Root, "root certificate of the WFM"
	if o.CA != "" {
		var err error
		if data, _, err = readFile(o.CA, maxAnchorsSize); err != nil {
			return nil, err
		}
		from = o.CA
	}
	if o.CA != "" || len(data) > 0 { // else RootCAs stays nil: the system's
		anchors, err := ParseAnchors(data)
		if err != nil {
			return nil, fault(Malformed, from, "%w", err)
		}
		config.RootCAs = pool(anchors)
	}
	if o.Name != "" {
		// Replaces the standard verification, which knows neither pins nor wrong clocks.
		config.InsecureSkipVerify = true
		config.VerifyConnection = func(state tls.ConnectionState) error {
			return o.verify(state.PeerCertificates, config.RootCAs)
		}
	}
	return config, nil
}

var errUnpinned = errors.New("no key in its certificate chain is pinned")

// verify checks that the presented leaf is that of the named server, and leads to an anchor or,
// with pins, to a certificate whose key is pinned (ID-14). With pins a name is checked only where
// one was connected to (RFC 9525).
func (o ServerOptions) verify(presented []*x509.Certificate, anchors *x509.CertPool) error {
	options := x509.VerifyOptions{Roots: anchors, Intermediates: pool(presented[1:]), DNSName: o.Name}
	if len(o.pins) > 0 && net.ParseIP(o.Name) != nil {
		options.DNSName = ""
	}
	// A pinned certificate is an anchor itself; its issuer does not matter.
	pinned := slices.DeleteFunc(slices.Clone(presented), func(c *x509.Certificate) bool { return !o.pinned(c) })
	if len(pinned) > 0 {
		options.Roots = pool(pinned)
	}
	now := o.Now()
	at, err := soonest(now, 0, o.WrongClock, func(at time.Time) error {
		options.CurrentTime = at
		chains, err := presented[0].Verify(options)
		// A root that is pinned need not be presented.
		if len(o.pins) > 0 && len(pinned) == 0 && !slices.ContainsFunc(chains, func(chain []*x509.Certificate) bool {
			return slices.ContainsFunc(chain, o.pinned)
		}) {
			err = errors.Join(errUnpinned, err)
		}
		return err
	})
	if err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: presented, Err: err}
	}
	if at.After(now) && o.Early != nil {
		o.Early(at)
	}
	return nil
}

func (o ServerOptions) pinned(c *x509.Certificate) bool {
	return o.pins[sha256.Sum256(c.RawSubjectPublicKeyInfo)]
}

// ParseAnchors reads at least one certificate in any form that WFMs are known to use: PEM, DER,
// and either of them in base64.
func ParseAnchors(data []byte) ([]*x509.Certificate, error) {
	if len(data) > maxAnchorsSize {
		return nil, errors.New("cannot read anchors: too large")
	}
	anchors, err := anchorsOf(data)
	if err != nil || len(anchors) > 0 {
		return anchors, err
	}
	// With or without line breaks and padding.
	compact := bytes.TrimRight(bytes.Join(bytes.Fields(data), nil), "=")
	decoded := make([]byte, base64.RawStdEncoding.DecodedLen(len(compact)))
	n, err := base64.RawStdEncoding.Decode(decoded, compact)
	if err == nil {
		anchors, err = anchorsOf(decoded[:n])
	}
	if err != nil || len(anchors) == 0 {
		return nil, errors.New("cannot read anchors: expected PEM or DER certificates, or either in base64")
	}
	return anchors, nil
}

func anchorsOf(data []byte) ([]*x509.Certificate, error) {
	if bytes.HasPrefix(data, []byte{0x30}) { // an ASN.1 sequence
		if certificate, err := x509.ParseCertificate(data); err == nil {
			return []*x509.Certificate{certificate}, nil
		}
	}
	return pemfile.Certificates(data, maxServerAnchors)
}
