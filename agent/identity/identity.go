package identity

import (
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of the files; the trust bundle's is with its parser.
const (
	maxCertificateSize = 64 << 10
	maxKeySize         = 32 << 10
)

// Options name the files of an identity.
type Options struct {
	Certificate string // X.509-SVID and its intermediates, PEM, leaf first
	Key         string // its private key, PEM, not encrypted
	TrustBundle string // SPIFFE bundle (JWKS) or PEM

	// Now is the clock that decides on validity; nil: the system's. A device
	// without a battery-backed clock gives one with a lower bound.
	Now func() time.Time
}

// Identity is the device's X.509-SVID together with the anchors that it
// believes. It is safe for concurrent use.
type Identity struct {
	options Options
	now     func() time.Time

	reload     sync.Mutex // one Reload at a time
	current    atomic.Pointer[material]
	generation atomic.Uint64
}

// material is what one reading of the files gave; it never changes.
type material struct {
	id          ID
	certificate tls.Certificate
	chain       []*x509.Certificate
	bundle      *TrustBundle
	keyMode     fs.FileMode
	files       [3][sha256.Size]byte // digests of certificate, key and bundle as read
}

// Load reads an identity. The error is an *Error.
func Load(o Options) (*Identity, error) {
	i := &Identity{options: o, now: o.Now}
	if i.now == nil {
		i.now = time.Now
	}
	m, err := read(o)
	if err != nil {
		return nil, err
	}
	i.current.Store(m)
	return i, nil
}

// Reload reads the files again and takes them over together, or, when anything
// is wrong with them, keeps what it had and says why (ID-02, ID-22). Files that
// are being replaced at this moment are such a case; a later Reload mends it.
func (i *Identity) Reload() error {
	i.reload.Lock()
	defer i.reload.Unlock()

	m, err := read(i.options)
	if err != nil {
		return err
	}
	if old := i.current.Swap(m); old.files != m.files {
		i.generation.Add(1)
	}
	return nil
}

// Generation moves whenever a Reload brought something new. Connections made
// before that rest on the identity of then and should be closed (ID-13).
func (i *Identity) Generation() uint64 { return i.generation.Load() }

// ClientID is the device's own SPIFFE ID.
func (i *Identity) ClientID() string { return i.current.Load().id.String() }

// WFMID is the SPIFFE ID of the one WFM that this device obeys.
func (i *Identity) WFMID() string { return i.current.Load().id.Server().String() }

// NotAfter is when the device's certificate, or an intermediate it needs,
// expires. From then on the device is offline, and nothing more than that.
func (i *Identity) NotAfter() time.Time {
	chain := i.current.Load().chain
	earliest := chain[0].NotAfter
	for _, c := range chain[1:] {
		if c.NotAfter.Before(earliest) {
			earliest = c.NotAfter
		}
	}
	return earliest
}

// Warnings are the things about the device's own files that keep it from
// working, or from being safe, and yet are no reason not to start.
func (i *Identity) Warnings() []*Error {
	m := i.current.Load()
	var warnings []*Error
	if m.keyMode.Perm()&0o077 != 0 {
		warnings = append(warnings, fault(KeyExposed, i.options.Key, "others than the owner may use the private key (mode %04o)", m.keyMode.Perm())) // ID-25
	}
	_, err := Verify(m.chain, Policy{Bundle: m.bundle, TrustDomain: m.id.TrustDomain, Role: RoleClient, At: i.now()})
	var unfit *Error
	if errors.As(err, &unfit) {
		unfit.Object = i.options.Certificate
		warnings = append(warnings, unfit)
	}
	return warnings
}

// TLS is the configuration for connections to the WFM. It follows Reload: each
// handshake uses the certificate and the anchors of its moment. The device's
// own certificate is shown only to a peer that was accepted.
func (i *Identity) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,     // ID-10
		NextProtos:             []string{"http/1.1"}, // ID-11
		SessionTicketsDisabled: true,                 // ID-13; a client without a session cache resumes nothing
		Time:                   i.now,

		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &i.current.Load().certificate, nil
		},

		// The standard verification insists on a host name, which means nothing
		// here (ID-07). VerifyConnection takes its place in full.
		InsecureSkipVerify: true,
		VerifyConnection:   i.verifyWFM,
	}
}

func (i *Identity) verifyWFM(state tls.ConnectionState) error {
	m := i.current.Load()
	wfm := m.id.Server()
	_, err := Verify(state.PeerCertificates, Policy{
		Bundle:      m.bundle,
		TrustDomain: wfm.TrustDomain,
		Role:        RoleWFM,
		ID:          wfm.String(),
		At:          i.now(),
	})
	return err
}

func read(o Options) (*material, error) {
	certificatePEM, _, err := readFile(o.Certificate, maxCertificateSize)
	if err != nil {
		return nil, err
	}
	keyPEM, keyMode, err := readFile(o.Key, maxKeySize)
	if err != nil {
		return nil, err
	}
	bundleData, _, err := readFile(o.TrustBundle, maxBundleSize)
	if err != nil {
		return nil, err
	}

	chain, err := parseCertificates(certificatePEM, maxChain)
	if err != nil {
		return nil, fault(Malformed, o.Certificate, "cannot read certificates: %w", err)
	}
	if len(chain) == 0 {
		return nil, fault(Malformed, o.Certificate, "holds no PEM certificate")
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, fault(Malformed, o.Key, "cannot read private key: %w", err)
	}
	bundle, err := ParseTrustBundle(bundleData)
	if err != nil {
		return nil, fault(Malformed, o.TrustBundle, "%w", err)
	}

	if public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(chain[0].PublicKey) {
		return nil, fault(KeyMismatch, o.Key, "the private key does not belong to the certificate in %s", o.Certificate)
	}
	if len(chain[0].URIs) != 1 {
		return nil, fault(NotClient, o.Certificate, "the certificate has %d URI SANs, an SVID has exactly one", len(chain[0].URIs))
	}
	id, err := ParseSPIFFEID(chain[0].URIs[0].String())
	if err != nil {
		return nil, fault(NotClient, o.Certificate, "the certificate's URI SAN is not that of a client: %w", err)
	}
	if id.Role() != RoleClient {
		return nil, fault(NotClient, o.Certificate, "%s is the ID of a %s, not of a client", id, id.Role())
	}

	m := &material{
		id:          id,
		certificate: tls.Certificate{PrivateKey: key, Leaf: chain[0]},
		chain:       chain,
		bundle:      bundle,
		keyMode:     keyMode,
		files:       [...][sha256.Size]byte{sha256.Sum256(certificatePEM), sha256.Sum256(keyPEM), sha256.Sum256(bundleData)},
	}
	for _, c := range chain { // leaf and all intermediates (ID-03)
		m.certificate.Certificate = append(m.certificate.Certificate, c.Raw)
	}
	return m, nil
}

func parseKey(data []byte) (crypto.Signer, error) {
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

func readFile(path string, limit int) ([]byte, fs.FileMode, error) {
	info, err := os.Stat(path) // before opening, which would hang on a pipe
	if err == nil && !info.Mode().IsRegular() {
		return nil, 0, fault(Unreadable, path, "is not a plain file")
	}
	var data []byte
	if err == nil {
		data, err = readLimited(path, limit)
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

// readLimited returns at most one byte more than the limit.
func readLimited(path string, limit int) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, int64(limit)+1))
}
