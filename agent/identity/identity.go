package identity

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/margolite/margolite/runtime/pemfile"
)

// Limits of the files; the trust bundle's is with its parser.
const (
	maxCertificateSize = 64 << 10
	maxKeySize         = 32 << 10
)

// Options say what an identity is made of.
type Options struct {
	Certificate string // X.509-SVID and its intermediates, PEM, leaf first
	Key         string // its private key, PEM, not encrypted, readable by its owner only (ID-25)
	// TrustBundle is a SPIFFE bundle (JWKS) or PEM. Empty: SetBundle provides one, and until then
	// no connection is made (ID-28).
	TrustBundle string

	// WFMIDs are the SPIFFE IDs, exactly one of which the WFM must have, if its ID does not
	// follow from the device's own (ID-06). All are of the device's trust domain; the first names
	// the WFM. The device's own ID may then be any.
	WFMIDs []string
	// TLS12 allows TLS 1.2 beside 1.3, for a WFM that cannot do better (ID-10).
	TLS12 bool

	// Now is the clock that decides on validity; nil: the system's. A device without a
	// battery-backed clock gives one with a lower bound.
	Now func() time.Time
	// WrongClock tells the lower bound of the present and whether the device's clock is before
	// it, so that errors can say so; nil: not known.
	WrongClock func() (floor time.Time, wrong bool)
}

// Identity is the device's X.509-SVID as read from its files, together with the anchors that it
// trusts. Replaced files are another Identity. It is safe for concurrent use.
type Identity struct {
	keyPair
	options     Options
	now         func() time.Time
	id          spiffeid.ID
	wfm         []string // SPIFFE IDs of the WFM, any of which it may have
	certificate tls.Certificate

	bundle     atomic.Pointer[TrustBundle] // nil: none yet
	generation atomic.Uint64
	peer       atomic.Pointer[time.Time] // end of validity of the last accepted WFM's chain
}

// Load reads an identity. The error is an *Error.
func Load(o Options) (*Identity, error) {
	pair, err := readKeyPair(o)
	if err != nil {
		return nil, err
	}
	leaf := pair.chain[0]
	i := &Identity{keyPair: pair, options: o, now: o.Now, certificate: tls.Certificate{PrivateKey: pair.key, Leaf: leaf}}
	if i.now == nil {
		i.now = time.Now
	}
	for _, c := range pair.chain { // leaf and all intermediates (ID-03)
		i.certificate.Certificate = append(i.certificate.Certificate, c.Raw)
	}
	if o.TrustBundle != "" {
		data, _, err := readFile(o.TrustBundle, maxBundleSize)
		if err != nil {
			return nil, err
		}
		bundle, err := ParseTrustBundle(data)
		if err != nil {
			return nil, fault(Malformed, o.TrustBundle, "%w", err)
		}
		i.bundle.Store(bundle)
	}

	if len(leaf.URIs) != 1 {
		return nil, fault(NotClient, o.Certificate, "the certificate has %d URI SANs; an SVID has exactly one", len(leaf.URIs))
	}
	if i.id, err = spiffeid.FromURI(leaf.URIs[0]); err != nil {
		return nil, fault(NotClient, o.Certificate, "the certificate's URI SAN is not a SPIFFE ID: %w", err)
	}
	if i.wfm, err = wfmIDs(i.id, o); err != nil {
		return nil, err
	}
	return i, nil
}

// SetBundle replaces the anchors with those of a bundle (ID-21). One without an anchor, or of
// another trust domain than the device's, is refused, and the current one stays (ID-19, ID-22).
func (i *Identity) SetBundle(trustDomain string, bundle *TrustBundle) error {
	switch own := i.TrustDomain(); {
	case trustDomain != own:
		return fault(OtherTrustDomain, "trust bundle", "belongs to trust domain %q, the device to %q", trustDomain, own)
	case bundle == nil || len(bundle.Anchors) == 0:
		return fault(Malformed, "trust bundle", "holds no X.509 anchor")
	}
	if old := i.bundle.Swap(bundle); old == nil || !slices.EqualFunc(old.Anchors, bundle.Anchors, (*x509.Certificate).Equal) {
		i.generation.Add(1)
	}
	return nil
}

// Generation changes whenever SetBundle brings something new. Connections made before rest on
// older anchors and must not be used any more (ID-13).
func (i *Identity) Generation() uint64 { return i.generation.Load() }

// ClientID is the device's own SPIFFE ID.
func (i *Identity) ClientID() string { return i.id.String() }

// TrustDomain is the trust domain that the device belongs to.
func (i *Identity) TrustDomain() string { return i.id.TrustDomain().Name() }

// WFMID is the SPIFFE ID of the WFM that this device obeys; the first of Options.WFMIDs, if any.
func (i *Identity) WFMID() string { return i.wfm[0] }

// Warnings are faults of the device's own files that keep it from working, or from being safe,
// and are yet no reason not to start.
func (i *Identity) Warnings() []*Error {
	_, err := i.authenticate(i.chain)
	if err == nil {
		return nil
	}
	err.Object = i.options.Certificate
	if err.Reason == NoBundle {
		err.Object = "trust bundle"
	}
	return []*Error{err}
}

// TLS is the configuration for connections to the WFM. Each handshake uses the anchors of its
// moment (SetBundle). The device's certificate is shown only to an accepted peer.
func (i *Identity) TLS() *tls.Config {
	config := newTLS(i.options.TLS12, i.now)
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &i.certificate, nil
	}
	// The standard verification requires a host name, which means nothing here (ID-07).
	// VerifyConnection replaces it in full.
	config.InsecureSkipVerify = true
	config.VerifyConnection = i.verifyWFM
	return config
}

// newTLS is what all connections of the standard have in common.
func newTLS(tls12 bool, now func() time.Time) *tls.Config {
	config := &tls.Config{
		MinVersion:             tls.VersionTLS13,     // ID-10
		NextProtos:             []string{"http/1.1"}, // ID-11
		SessionTicketsDisabled: true,                 // ID-13; a client without a session cache resumes nothing
		Time:                   now,
	}
	if tls12 {
		// RFC 9325: forward secrecy and authenticated encryption only. TLS 1.3 has its own.
		config.MinVersion = tls.VersionTLS12
		config.CipherSuites = []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
			tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		}
	}
	return config
}

func (i *Identity) verifyWFM(state tls.ConnectionState) error {
	id, err := i.authenticate(state.PeerCertificates)
	if err != nil {
		return err
	}
	if !slices.Contains(i.wfm, id.String()) { // ID-06, ID-26
		return fault(OtherIdentity, id.String(), "is not the WFM of this device, which is %s", strings.Join(i.wfm, " or "))
	}
	until := notAfter(state.PeerCertificates)
	i.peer.Store(&until)
	return nil
}

// Plausible reports whether a time told by the WFM can be the present: the device's certificate
// and those of the last accepted connection are valid then. What a WFM with a wrong clock tells
// is not plausible, or forgotten when its certificate is renewed.
func (i *Identity) Plausible(t time.Time) bool {
	peer := i.peer.Load()
	return peer != nil && !t.After(*peer) && !t.After(notAfter(i.chain))
}

// wfmIDs are the accepted SPIFFE IDs of the WFM: those configured, or the one that follows from
// the device's own ID (ID-06).
func wfmIDs(own spiffeid.ID, o Options) ([]string, error) {
	if len(o.WFMIDs) == 0 {
		id, err := ParseSPIFFEID(own.String())
		if err != nil {
			return nil, fault(NotClient, o.Certificate, "the certificate's URI SAN is not that of a client: %w", err)
		}
		if id.Client == "" {
			return nil, fault(NotClient, o.Certificate, "%s is the ID of a WFM, not of a client", id)
		}
		return []string{id.Server().String()}, nil
	}
	for _, s := range o.WFMIDs {
		id, err := spiffeid.FromString(s)
		switch {
		case err != nil:
			return nil, fault(Misconfigured, "SPIFFE ID of the WFM", "%.200q is not a SPIFFE ID: %w", s, err)
		case id.Path() == "":
			return nil, fault(Misconfigured, "SPIFFE ID of the WFM", "%s names a trust domain only", s)
		case id.TrustDomain() != own.TrustDomain():
			return nil, fault(Misconfigured, "SPIFFE ID of the WFM", "%s is not in the device's own trust domain %s", s, own.TrustDomain())
		}
	}
	return slices.Clone(o.WFMIDs), nil
}

// keyPair is a certificate with its intermediates, leaf first, and its key.
type keyPair struct {
	chain []*x509.Certificate
	key   crypto.Signer
}

func readKeyPair(o Options) (pair keyPair, err error) {
	data, _, err := readFile(o.Certificate, maxCertificateSize)
	if err != nil {
		return pair, err
	}
	if pair.key, err = readKey(o.Key); err != nil {
		return pair, err
	}
	if pair.chain, err = pemfile.Certificates(data, maxChain); err != nil {
		return pair, fault(Malformed, o.Certificate, "cannot read certificates: %w", err)
	}
	if len(pair.chain) == 0 {
		return pair, fault(Malformed, o.Certificate, "holds no PEM certificate")
	}
	public, ok := pair.key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(pair.chain[0].PublicKey) {
		return pair, fault(KeyMismatch, o.Key, "the private key does not belong to the certificate in %s", o.Certificate)
	}
	return pair, nil
}

func readKey(file string) (crypto.Signer, error) {
	data, err := readPrivate(file, maxKeySize)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(data)
	if err != nil {
		return nil, fault(Malformed, file, "cannot read private key: %w", err)
	}
	return key, nil
}

func parseKey(data []byte) (crypto.Signer, error) {
	data, err := pemfile.Tidy(data)
	if err != nil {
		return nil, err
	}
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return nil, errors.New("no PEM private key found")
		}
		var key any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "ENCRYPTED PRIVATE KEY":
			return nil, errors.New("the private key is encrypted")
		default:
			continue // "EC PARAMETERS", as openssl writes them in front
		}
		if err != nil {
			return nil, errors.New(strings.TrimPrefix(err.Error(), "x509: "))
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, errors.New("the private key cannot sign")
		}
		return signer, nil
	}
}

// readFile reads a file of at most limit bytes; the mode is that of the file read.
func readFile(path string, limit int) (data []byte, mode fs.FileMode, err error) {
	info, err := os.Stat(path) // before opening, which would block on a pipe
	if err == nil && !info.Mode().IsRegular() {
		return nil, 0, fault(Unreadable, path, "is not a regular file")
	}
	var file *os.File
	if err == nil {
		file, err = os.Open(path)
	}
	if err == nil {
		defer file.Close()
		info, err = file.Stat()
	}
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(file, int64(limit)+1))
	}
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err // the path is named already
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, 0, fault(Missing, path, "cannot read file: %w", err)
	case err != nil:
		return nil, 0, fault(Unreadable, path, "cannot read file: %w", err)
	case len(data) > limit:
		return nil, 0, fault(TooLarge, path, "is larger than %d bytes", limit)
	}
	return data, info.Mode(), nil
}

// readPrivate reads a file that only its owner may read (ID-25).
func readPrivate(path string, limit int) ([]byte, error) {
	data, mode, err := readFile(path, limit)
	if err == nil && mode.Perm()&0o077 != 0 {
		return nil, fault(KeyExposed, path, "users other than its owner can access it (mode %04o)", mode.Perm())
	}
	return data, err
}
