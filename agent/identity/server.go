package identity

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"time"

	"github.com/margolite/margolite/runtime/pemfile"
)

// maxServerAnchors bounds the certificates of a file of anchors; a system's own file
// has about 150.
const maxServerAnchors = 512

// maxAnchorsSize bounds that file; a system's own has about 220 KB.
const maxAnchorsSize = 1 << 20

// ServerOptions say which servers with an ordinary certificate are believed:
// a WFM before rc.3, and gateways that terminate TLS in front of any WFM.
type ServerOptions struct {
	// CA is a file of anchors, provisioned out of band (AUTH-02). It wins.
	CA string
	// Root is the WFM's own anchor as it was received over a connection that
	// was trusted already, and kept: in any form that ParseAnchors reads. Where
	// it is given it is the only anchor. With neither, the system's are.
	Root []byte
	// TLS12 allows the fallback that is not on by default.
	TLS12 bool
	// Now is the clock that decides on validity; nil: the system's.
	Now func() time.Time
}

// ServerTLS is the configuration for connections to such servers: the host's
// name and an anchor are checked the usual way, and nothing is shown of the
// device (AUTH-02, AUTH-03). It does not follow its file; a replaced one needs
// a new configuration. The error is an *Error.
func ServerTLS(o ServerOptions) (*tls.Config, error) {
	config := newTLS(o.TLS12, o.Now)
	var anchors []*x509.Certificate
	switch {
	case o.CA != "":
		data, _, err := readFile(o.CA, maxAnchorsSize)
		if err != nil {
			return nil, err
		}
		if anchors, err = ParseAnchors(data); err != nil {
			return nil, fault(Malformed, o.CA, "%w", err)
		}
	case len(o.Root) > 0:
		var err error
		if anchors, err = ParseAnchors(o.Root); err != nil {
			return nil, fault(Malformed, "root certificate of the WFM", "%w", err)
		}
	default:
		return config, nil // RootCAs nil: the system's
	}
	config.RootCAs = pool(anchors)
	return config, nil
}

// ParseAnchors reads certificates to be trusted in each form that WFMs are
// known to give theirs in: PEM, DER, and either of them in base64. There
// is at least one.
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

// anchorsOf reads PEM or DER, and nothing of anything else.
func anchorsOf(data []byte) ([]*x509.Certificate, error) {
	if bytes.HasPrefix(data, []byte{0x30}) { // an ASN.1 sequence
		if certificate, err := x509.ParseCertificate(data); err == nil {
			return []*x509.Certificate{certificate}, nil
		}
	}
	return pemfile.Certificates(data, maxServerAnchors)
}

// ValidFrom is the first time from at on at which a chain proves a server to be the
// one of that name, by the anchors of a configuration of [ServerTLS]; false: it never
// does. Nothing says that the server has the key.
func ValidFrom(config *tls.Config, host string, chain []*x509.Certificate, at time.Time) (time.Time, bool) {
	if len(chain) == 0 {
		return time.Time{}, false
	}
	options := x509.VerifyOptions{Roots: config.RootCAs, DNSName: host, Intermediates: pool(chain[1:])}
	for {
		options.CurrentTime = at
		_, err := chain[0].Verify(options)
		if err == nil {
			return at, true
		}
		var early x509.CertificateInvalidError
		if !errors.As(err, &early) || early.Reason != x509.Expired || !early.Cert.NotBefore.After(at) {
			return time.Time{}, false
		}
		at = early.Cert.NotBefore // later each time
	}
}
