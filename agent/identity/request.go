package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Subject is the subject of a certificate request: one of the two.
type Subject struct {
	ID   ID     // a client, for an X.509-SVID (1.0.0-rc.3)
	Name string // a common name, for the certificates before that; up to 64 characters
}

// Request makes a certificate signing request, in PEM, with the private key in keyFile, which
// never leaves the device (ID-02). If the file does not exist, a key is made first (ID-25): ECDSA
// P-256, mode 0600. An existing file is never changed. Errors about it are *Error.
func Request(keyFile string, s Subject) (csr []byte, created bool, err error) {
	template := &x509.CertificateRequest{}
	minBits := 2048
	switch {
	case s.Name == "" && s.ID.Client != "":
		u, err := url.Parse(s.ID.String())
		if err != nil {
			return nil, false, fmt.Errorf("cannot ask for a certificate for %s: %w", s.ID, err)
		}
		template.URIs = []*url.URL{u}
		minBits = minRSA
	case s.ID == ID{} && isCommonName(s.Name):
		template.Subject = pkix.Name{CommonName: s.Name}
	default:
		return nil, false, errors.New("cannot ask for a certificate: " +
			"expected the SPIFFE ID of a client, or a name of 1 to 64 printable characters")
	}
	key, created, err := ensureKey(keyFile)
	if err != nil {
		return nil, false, err
	}
	if weak, ok := key.Public().(*rsa.PublicKey); ok && weak.N.BitLen() < minBits {
		bits := weak.N.BitLen()
		return nil, false, fault(WeakKey, keyFile, "the RSA key has %d bits; at least %d are required", bits, minBits)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, created, fmt.Errorf("cannot sign the request with the key in %s: %w", keyFile, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), created, nil
}

// isCommonName: X.509 bounds it to 64 characters.
func isCommonName(s string) bool {
	return s != "" && len(s) <= 64 && strings.TrimSpace(s) == s &&
		strings.IndexFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) < 0
}

func ensureKey(file string) (key crypto.Signer, created bool, err error) {
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		created, err = createKey(file)
		if err != nil {
			return nil, false, fmt.Errorf("cannot create private key %s: %w", file, err)
		}
	}
	key, err = readKey(file)
	return key, created && err == nil, err
}

// createKey makes a key in a new file, whole or not at all, and keeps an existing one.
func createKey(file string) (created bool, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return false, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return false, err
	}
	dir := filepath.Dir(file)
	temporary, err := os.CreateTemp(dir, "."+filepath.Base(file)+"-*") // mode 0600
	if err != nil {
		return false, err
	}
	defer os.Remove(temporary.Name())
	written := pem.Encode(temporary, &pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := errors.Join(written, temporary.Sync(), temporary.Close()); err != nil {
		return false, err
	}
	switch err = os.Link(temporary.Name(), file); {
	case errors.Is(err, fs.ErrExist):
		return false, nil
	case err != nil: // a file system without links
		if _, there := os.Lstat(file); !errors.Is(there, fs.ErrNotExist) {
			return false, err
		}
		if err := os.Rename(temporary.Name(), file); err != nil {
			return false, err
		}
	}
	folder, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer folder.Close()
	return true, folder.Sync()
}
