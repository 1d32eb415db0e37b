// Package pki makes the certificates of a trust domain for tests and for the
// development WFM: a root, an intermediate, and SVIDs signed by it, sound or
// broken on purpose. It is no certificate authority for anything that matters:
// keys lie unprotected in memory and in the files that it writes.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/margolite/margolite/agent/identity"
)

// Lifetimes, counted from the time that the authority was made for.
const (
	authorityLife = 10 * 365 * 24 * time.Hour
	svidLife      = 90 * 24 * time.Hour
	backdated     = time.Hour // so that a clock somewhat behind works too
)

// anchor is a root that certificates lead to.
type anchor struct {
	Root *x509.Certificate

	at        time.Time
	key       crypto.Signer
	algorithm x509.SignatureAlgorithm // 0: that of the key
}

func (a *anchor) make(name string) (err error) {
	if a.key == nil {
		if a.key, err = newKey(); err != nil {
			return err
		}
	}
	template := authorityTemplate(name, a.at)
	if a.Root, err = a.sign(template, template, a.key.Public(), a.key); err != nil {
		return fmt.Errorf("cannot make root %s: %w", name, err)
	}
	return nil
}

// parse brings back an anchor from what PEM returned.
func (a *anchor) parse(data []byte) error {
	pair, err := tls.X509KeyPair(data, data)
	if err != nil {
		return fmt.Errorf("cannot read authority: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return fmt.Errorf("cannot read authority's key: a %T cannot sign", pair.PrivateKey)
	}
	a.Root, a.key = pair.Leaf, key
	return nil
}

// PEM is the root with its private key, for ParseAuthority and ParseServerAuthority.
func (a *anchor) PEM() ([]byte, error) {
	key, err := keyPEM(a.key)
	if err != nil {
		return nil, err
	}
	return append(certificatePEM(a.Root), key...), nil
}

// RootPEM is the root as a file of anchors holds it.
func (a *anchor) RootPEM() []byte { return certificatePEM(a.Root) }

// issue makes a certificate that is signed by a parent.
func (a *anchor) issue(parent *x509.Certificate, by crypto.Signer, name string, subject pkix.Name, options ...Option) (*SVID, error) {
	r := &request{Certificate: &x509.Certificate{
		Subject:   subject,
		NotBefore: a.at.Add(-backdated),
		NotAfter:  a.at.Add(svidLife),
		KeyUsage:  x509.KeyUsageDigitalSignature,

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
	leaf, err := a.sign(r.Certificate, parent, r.key.Public(), by)
	if err != nil {
		return nil, fmt.Errorf("cannot issue certificate %s: %w", name, err)
	}
	return &SVID{ID: name, Chain: []*x509.Certificate{leaf}, Key: r.key}, nil
}

// Authority signs the SVIDs of one trust domain.
type Authority struct {
	TrustDomain  string
	Intermediate *x509.Certificate
	anchor

	intermediateKey crypto.Signer
}

// AuthorityOption changes an authority before its certificates are made.
type AuthorityOption func(*Authority)

// Signing makes root and intermediate sign with this key and algorithm instead
// of new ECDSA P-256 ones.
func Signing(key crypto.Signer, algorithm x509.SignatureAlgorithm) AuthorityOption {
	return func(a *Authority) { a.key, a.intermediateKey, a.algorithm = key, key, algorithm }
}

// NewAuthority makes an authority whose certificates, and those it issues, are
// valid around the given time.
func NewAuthority(trustDomain string, at time.Time, options ...AuthorityOption) (*Authority, error) {
	a := &Authority{TrustDomain: trustDomain, anchor: anchor{at: at}}
	for _, option := range options {
		option(a)
	}
	if err := a.make("Root of " + trustDomain); err != nil {
		return nil, err
	}
	return a, a.addIntermediate()
}

// ParseAuthority brings back an authority from what PEM returned, with a new
// intermediate. Certificates it issued before stay valid.
func ParseAuthority(trustDomain string, data []byte, at time.Time) (*Authority, error) {
	a := &Authority{TrustDomain: trustDomain, anchor: anchor{at: at}}
	if err := a.parse(data); err != nil {
		return nil, err
	}
	return a, a.addIntermediate()
}

func (a *Authority) addIntermediate() (err error) {
	if a.intermediateKey == nil {
		if a.intermediateKey, err = newKey(); err != nil {
			return err
		}
	}
	a.Intermediate, err = a.sign(authorityTemplate("Issuer of "+a.TrustDomain, a.at), a.Root, a.intermediateKey.Public(), a.key)
	if err != nil {
		return fmt.Errorf("cannot make intermediate of %s: %w", a.TrustDomain, err)
	}
	return nil
}

// Bundle holds the root as the anchor of the trust domain.
func (a *Authority) Bundle() *identity.TrustBundle {
	return &identity.TrustBundle{Anchors: []*x509.Certificate{a.Root}, Sequence: 1}
}

// BundleJSON is the bundle as a SPIFFE bundle, BundlePEM as PEM.
func (a *Authority) BundleJSON() ([]byte, error) { return MarshalBundle(a.Bundle()) }

// BundlePEM is the root certificate as PEM.
func (a *Authority) BundlePEM() []byte { return certificatePEM(a.Root) }

// Option changes an SVID before it is signed.
type Option func(*request)

type request struct {
	*x509.Certificate
	key crypto.Signer
}

// Valid sets the validity.
func Valid(notBefore, notAfter time.Time) Option {
	return func(r *request) { r.NotBefore, r.NotAfter = notBefore, notAfter }
}

// URIs replaces the URI SANs.
func URIs(uris ...string) Option {
	return func(r *request) {
		r.Certificate.URIs = nil
		for _, uri := range uris {
			parsed, err := url.Parse(uri)
			if err != nil {
				parsed = &url.URL{Opaque: uri}
			}
			r.Certificate.URIs = append(r.Certificate.URIs, parsed)
		}
	}
}

// IsCA makes the leaf an authority itself.
func IsCA(r *request) { r.Certificate.IsCA = true }

// KeyUsage adds to the key usage.
func KeyUsage(usage x509.KeyUsage) Option {
	return func(r *request) { r.Certificate.KeyUsage |= usage }
}

// NoKeyUsage leaves the key usage out.
func NoKeyUsage(r *request) { r.Certificate.KeyUsage = 0 }

// ExtKeyUsage replaces the extended key usage.
func ExtKeyUsage(usages ...x509.ExtKeyUsage) Option {
	return func(r *request) { r.Certificate.ExtKeyUsage = usages }
}

// IssuerURL names a place where the issuer's certificate could be fetched (AIA).
func IssuerURL(url string) Option {
	return func(r *request) { r.Certificate.IssuingCertificateURL = []string{url} }
}

// Key uses this key instead of a new ECDSA P-256 one.
func Key(key crypto.Signer) Option { return func(r *request) { r.key = key } }

// IssueWFM makes the SVID of a WFM.
func (a *Authority) IssueWFM(wfmID string, options ...Option) (*SVID, error) {
	return a.Issue(identity.ID{TrustDomain: a.TrustDomain, WFM: wfmID}.String(), options...)
}

// IssueClient makes the SVID of a client of a WFM.
func (a *Authority) IssueClient(wfmID, clientID string, options ...Option) (*SVID, error) {
	return a.Issue(identity.ID{TrustDomain: a.TrustDomain, WFM: wfmID, Client: clientID}.String(), options...)
}

// IssueServer makes an ordinary certificate of a TLS server, no SVID.
func (a *Authority) IssueServer(options ...Option) (*SVID, error) {
	return a.Issue("", append([]Option{URIs(), ExtKeyUsage(x509.ExtKeyUsageServerAuth)}, options...)...)
}

// Issue makes an SVID for any URI.
func (a *Authority) Issue(uri string, options ...Option) (*SVID, error) {
	options = append([]Option{ExtKeyUsage(x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth), URIs(uri)}, options...)
	svid, err := a.issue(a.Intermediate, a.intermediateKey, uri, pkix.Name{Organization: []string{"margolite test"}}, options...)
	if err != nil {
		return nil, err
	}
	svid.Chain = append(svid.Chain, a.Intermediate)
	return svid, nil
}

// SVID is a certificate with its intermediates, leaf first, and its key.
type SVID struct {
	ID    string
	Chain []*x509.Certificate
	Key   crypto.Signer
}

// TLS is the SVID as crypto/tls wants it.
func (s *SVID) TLS() tls.Certificate {
	certificate := tls.Certificate{PrivateKey: s.Key, Leaf: s.Chain[0]}
	for _, c := range s.Chain {
		certificate.Certificate = append(certificate.Certificate, c.Raw)
	}
	return certificate
}

// CertificatePEM is the chain, leaf first.
func (s *SVID) CertificatePEM() []byte { return certificatePEM(s.Chain...) }

// KeyPEM is the private key in PKCS #8.
func (s *SVID) KeyPEM() ([]byte, error) { return keyPEM(s.Key) }

// Files are the paths of an identity, as identity.Options wants them.
type Files struct {
	Certificate, Key, TrustBundle string
}

// WriteFiles writes an SVID and the trust bundle to device.pem, device.key and
// trust-bundle.json in a folder, replacing what was there.
func WriteFiles(dir string, svid *SVID, bundle *identity.TrustBundle) (Files, error) {
	files := Files{
		Certificate: filepath.Join(dir, "device.pem"),
		Key:         filepath.Join(dir, "device.key"),
		TrustBundle: filepath.Join(dir, "trust-bundle.json"),
	}
	key, err := svid.KeyPEM()
	if err != nil {
		return Files{}, err
	}
	anchors, err := MarshalBundle(bundle)
	if err != nil {
		return Files{}, err
	}
	return files, errors.Join(
		os.WriteFile(files.Certificate, svid.CertificatePEM(), 0o644),
		os.WriteFile(files.Key, key, 0o600),
		os.WriteFile(files.TrustBundle, anchors, 0o644),
	)
}

func authorityTemplate(name string, at time.Time) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: at.Add(-backdated),
		NotAfter:  at.Add(authorityLife),
		KeyUsage:  x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:      true,

		BasicConstraintsValid: true,
	}
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func (a *anchor) sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	template.SignatureAlgorithm = a.algorithm
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func certificatePEM(chain ...*x509.Certificate) []byte {
	var out []byte
	for _, c := range chain {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

func keyPEM(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("cannot write private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
