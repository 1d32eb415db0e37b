package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// minSigningRSA is the smallest RSA key that may sign requests. The standard sets no bound before
// rc.3; 2048 bits is what RFC 9421's own keys have and what is in use.
const minSigningRSA = 2048

const signatureLabel = "sig1"

// Signer signs requests as HTTP Message Signatures (RFC 9421) with the digest of their body (RFC
// 9530). It covers what the standard asks for, and names the key by the hexadecimal
// SHA-256 of its SubjectPublicKeyInfo. It is safe for concurrent use.
type Signer struct {
	key   crypto.Signer // *ecdsa.PrivateKey or *rsa.PrivateKey
	hash  crypto.Hash
	keyID string
	now   func() time.Time
}

// NewSigner makes a signer from ECDSA keys of the curves P-256 and P-384 and RSA keys of at least
// 2048 bits (AUTH-09). RSA keys sign with rsa-v1_5-sha256: the standard's rsa-pss-sha256 is not
// registered. The clock dates signatures; nil: the system's.
func NewSigner(key crypto.Signer, now func() time.Time) (*Signer, error) {
	s := &Signer{key: key, now: now}
	if now == nil {
		s.now = time.Now
	}
	var err error
	if s.hash, err = hashFor(key); err != nil {
		return nil, fmt.Errorf("cannot sign requests: %w", err)
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("cannot sign requests: %w", err)
	}
	sum := sha256.Sum256(spki)
	s.keyID = hex.EncodeToString(sum[:])
	return s, nil
}

func hashFor(key crypto.Signer) (crypto.Hash, error) {
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		switch key.Curve {
		case elliptic.P256():
			return crypto.SHA256, nil
		case elliptic.P384():
			return crypto.SHA384, nil
		}
		return 0, errors.New("an ECDSA key must use curve P-256 or P-384")
	case *rsa.PrivateKey:
		if bits := key.N.BitLen(); bits < minSigningRSA {
			return 0, fmt.Errorf("an RSA key must have at least %d bits, it has %d", minSigningRSA, bits)
		}
		return crypto.SHA256, nil
	}
	return 0, fmt.Errorf("the key must be ECDSA or RSA, it is %T", key)
}

// Sign sets Content-Digest, Signature-Input and Signature of a request. The body is what will be
// sent; nil or empty: none (AUTH-06 ... AUTH-08). Each attempt to send a request needs its own
// signature, which includes its time (AUTH-11).
func (s *Signer) Sign(r *http.Request, body []byte) error {
	r.Header.Del("Content-Digest")
	if len(body) > 0 {
		sum := sha256.Sum256(body) // of the raw bytes
		r.Header.Set("Content-Digest", "sha-256="+sfBytes(sum[:]))
	}
	base, input, err := signatureBase(r, fmt.Sprintf(";created=%d;keyid=%q", s.now().Unix(), s.keyID))
	if err != nil {
		return fmt.Errorf("cannot sign request: %w", err)
	}
	signature, err := s.sign([]byte(base))
	if err != nil {
		return fmt.Errorf("cannot sign request: %w", err)
	}
	r.Header.Set("Signature-Input", signatureLabel+"="+input)
	r.Header.Set("Signature", signatureLabel+"="+sfBytes(signature))
	return nil
}

func (s *Signer) sign(base []byte) ([]byte, error) {
	h := s.hash.New()
	h.Write(base)
	key, ok := s.key.(*ecdsa.PrivateKey)
	if !ok {
		return s.key.Sign(rand.Reader, h.Sum(nil), s.hash)
	}
	first, second, err := ecdsa.Sign(rand.Reader, key, h.Sum(nil))
	if err != nil {
		return nil, err
	}
	// One after the other, each of the curve's size.
	size := (key.Params().BitSize + 7) / 8
	raw := make([]byte, 2*size)
	first.FillBytes(raw[:size])
	second.FillBytes(raw[size:])
	return raw, nil
}

// signatureBase gives the text that is signed (RFC 9421, 2.5), and its value of Signature-Input.
// A request without a body has no digest to cover (AUTH-07).
func signatureBase(r *http.Request, parameters string) (base, input string, err error) {
	if r.URL.Opaque != "" || r.URL.Scheme == "" {
		return "", "", errors.New("the URL of the request is not absolute")
	}
	method := r.Method
	if method == "" {
		method = http.MethodGet
	}
	target := r.URL.Scheme + "://" + sentHost(r) + r.URL.RequestURI()
	// A line break would let one component look like two.
	if strings.ContainsFunc(method+target, func(c rune) bool { return c < ' ' || c > '~' }) {
		return "", "", errors.New("the URL of the request has characters that are not printable ASCII")
	}
	base, input = `"@method": `+method+"\n"+`"@target-uri": `+target+"\n", `("@method" "@target-uri"`
	if digest := r.Header.Get("Content-Digest"); digest != "" {
		base, input = base+`"content-digest": `+digest+"\n", input+` "content-digest"`
	}
	input += ")" + parameters
	return base + `"@signature-params": ` + input, input, nil
}

// sentHost is the Host field as net/http sends it.
func sentHost(r *http.Request) string {
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	// The zone of an IPv6 address is local and not sent.
	zone, end := strings.LastIndexByte(host, '%'), strings.LastIndexByte(host, ']')
	if strings.HasPrefix(host, "[") && zone > 0 && zone < end {
		host = host[:zone] + host[end:]
	}
	return host
}

func sfBytes(b []byte) string { return ":" + base64.StdEncoding.EncodeToString(b) + ":" }
