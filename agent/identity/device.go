package identity

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// DeviceOptions name the files of a device certificate.
type DeviceOptions struct {
	Certificate string // RFC 5280, PEM, leaf first (AUTH-10)
	Key         string // its private key, PEM, not encrypted, for the owner only
	Signature   SignatureOptions

	// Now is the clock that signatures are dated by and that decides on
	// validity; nil: the system's.
	Now func() time.Time
}

// Device is who a device is before rc.3: a certificate that the WFM gets to
// know when the device is onboarded, and the key that signs every request from
// then on (AUTH-04, AUTH-08). No server asks for it in a handshake. It is safe
// for concurrent use.
type Device struct {
	options DeviceOptions
	now     func() time.Time

	reload     sync.Mutex // one Reload at a time
	current    atomic.Pointer[deviceMaterial]
	generation atomic.Uint64
}

// deviceMaterial is what one reading of the files gave; it never changes.
type deviceMaterial struct {
	chain  []*x509.Certificate
	signer *Signer
	files  [2][sha256.Size]byte // digests of certificate and key as read
}

// LoadDevice reads a device certificate. The error is an *Error.
func LoadDevice(o DeviceOptions) (*Device, error) {
	d := &Device{options: o, now: o.Now}
	if d.now == nil {
		d.now = time.Now
	}
	m, err := d.read()
	if err != nil {
		return nil, err
	}
	d.current.Store(m)
	return d, nil
}

// Reload reads the files again and takes them over together, or, when anything
// is wrong with them, keeps what it had and says why.
func (d *Device) Reload() error {
	d.reload.Lock()
	defer d.reload.Unlock()

	m, err := d.read()
	if err != nil {
		return err
	}
	if old := d.current.Swap(m); old.files != m.files {
		d.generation.Add(1)
	}
	return nil
}

// Generation moves whenever a Reload brought something new. A WFM that knows
// the former certificate has to be told the new one by onboarding again.
func (d *Device) Generation() uint64 { return d.generation.Load() }

// CertificatePEM is the certificate, with the intermediates that its file has,
// for onboarding.
func (d *Device) CertificatePEM() []byte {
	var b []byte
	for _, c := range d.current.Load().chain {
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return b
}

// Fingerprint is the SHA-256 of the certificate: what tells a renewed one from
// the one that the WFM was given.
func (d *Device) Fingerprint() [sha256.Size]byte {
	return sha256.Sum256(d.current.Load().chain[0].Raw)
}

// NotAfter is when the certificate expires. From then on the device is offline,
// and nothing more than that.
func (d *Device) NotAfter() time.Time { return d.current.Load().chain[0].NotAfter }

// Warnings are the things about the device's own files that keep it from
// working and yet are no reason not to start.
func (d *Device) Warnings() []*Error {
	leaf := d.current.Load().chain[0]
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	switch now := d.now(); {
	case now.Before(leaf.NotBefore):
		return []*Error{fault(NotYetValid, d.options.Certificate, "the certificate is not valid before %s", at(leaf.NotBefore))}
	case now.After(leaf.NotAfter):
		return []*Error{fault(Expired, d.options.Certificate, "the certificate expired at %s", at(leaf.NotAfter))}
	}
	return nil
}

// Sign signs a request with the key of this moment; see Signer.Sign.
func (d *Device) Sign(r *http.Request, body []byte) error {
	return d.current.Load().signer.Sign(r, body)
}

func (d *Device) read() (*deviceMaterial, error) {
	o := d.options
	pair, err := readKeyPair(o.Certificate, o.Key)
	if err != nil {
		return nil, err
	}
	if _, err := algorithmFor(pair.key.Public(), ""); err != nil {
		return nil, fault(UnfitKey, o.Key, "cannot sign requests: %w", err)
	}
	if usage := pair.chain[0].KeyUsage; usage != 0 && usage&x509.KeyUsageDigitalSignature == 0 {
		return nil, fault(UnfitKey, o.Certificate, "the certificate does not allow its key to make signatures")
	}
	signer, err := NewSigner(pair.key, o.Signature, o.Now)
	if err != nil {
		return nil, fault(Malformed, "signature settings", "%w", err)
	}
	return &deviceMaterial{chain: pair.chain, signer: signer, files: pair.files}, nil
}
