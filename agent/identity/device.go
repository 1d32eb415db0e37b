package identity

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"time"
)

// Device is a device's identity before rc.3: a certificate that the WFM learns at onboarding, and
// the key that then signs every request (AUTH-04, AUTH-08). It is not used in TLS handshakes. It
// holds the files as they were read: replaced files are another Device, which has to be onboarded
// again. It is safe for concurrent use.
type Device struct {
	keyPair
	*Signer
	file string // with the certificate
}

// LoadDevice reads a device certificate (RFC 5280, AUTH-10) and its key from the Certificate and
// Key of options, whose clock also dates signatures. The error is an *Error.
func LoadDevice(o Options) (*Device, error) {
	pair, err := readKeyPair(o)
	if err != nil {
		return nil, err
	}
	signer, err := NewSigner(pair.key, o.Now)
	if err != nil {
		return nil, fault(UnfitKey, o.Key, "%w", err)
	}
	if usage := pair.chain[0].KeyUsage; usage != 0 && usage&x509.KeyUsageDigitalSignature == 0 {
		return nil, fault(UnfitKey, o.Certificate, "the certificate does not allow its key to sign")
	}
	return &Device{keyPair: pair, Signer: signer, file: o.Certificate}, nil
}

// CertificatePEM is the certificate with the intermediates of its file, for onboarding.
func (d *Device) CertificatePEM() []byte {
	var b []byte
	for _, c := range d.chain {
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return b
}

// Fingerprint is the certificate's SHA-256 in hexadecimal, which changes when it is renewed.
func (d *Device) Fingerprint() string {
	sum := sha256.Sum256(d.chain[0].Raw)
	return hex.EncodeToString(sum[:])
}

// Warnings are faults of the device's own files that keep it from working, not from starting.
func (d *Device) Warnings() []*Error {
	leaf := d.chain[0]
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	switch now := d.now(); {
	case now.Before(leaf.NotBefore):
		return []*Error{fault(NotYetValid, d.file, "the certificate is not valid before %s", at(leaf.NotBefore))}
	case now.After(leaf.NotAfter):
		return []*Error{fault(Expired, d.file, "the certificate expired at %s", at(leaf.NotAfter))}
	}
	return nil
}
