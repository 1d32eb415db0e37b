package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Algorithm is a signature algorithm of RFC 9421, by its registered name.
type Algorithm string

// The algorithms that a Signer can use (AUTH-09). The fourth one that the
// standard lists, rsa-pss-sha256, is not registered; the registered RSA-PSS is
// used only where it is asked for.
const (
	ECDSAP256SHA256 Algorithm = "ecdsa-p256-sha256"
	ECDSAP384SHA384 Algorithm = "ecdsa-p384-sha384"
	RSAv15SHA256    Algorithm = "rsa-v1_5-sha256"
	RSAPSSSHA512    Algorithm = "rsa-pss-sha512"
)

// minSigningRSA is the smallest RSA key that may sign requests. The standard
// sets no bound before rc.3; 2048 bits is what RFC 9421's own keys have, and
// what is in use.
const minSigningRSA = 2048

// Bounds of what a configuration may ask of each request.
const (
	maxComponents = 32
	maxKeyID      = 256
)

// signatureLabel names the one signature of a request.
const signatureLabel = "sig1"

// SignatureOptions say how requests are signed. The zero value is what the
// standard's text asks for.
type SignatureOptions struct {
	// Components are covered, in this order: "@method", "@target-uri",
	// "@authority", "@scheme", "@request-target", "@path", "@query", and header
	// fields by name, in any case. A field that a request does not carry is not
	// covered there. Empty: "@method" "@target-uri" "content-digest".
	Components []string
	// KeyID is the parameter of that name; empty: the SHA-256 of the public
	// key's SubjectPublicKeyInfo in hexadecimal.
	KeyID string
	// Algorithm is only needed for RSAPSSSHA512; empty: what fits the key.
	Algorithm Algorithm
	// NameAlgorithm adds the parameter alg.
	NameAlgorithm bool
}

// Signer signs requests as HTTP Message Signatures (RFC 9421), together with
// the digest of their body (RFC 9530). It is safe for concurrent use.
type Signer struct {
	key        crypto.Signer
	algorithm  Algorithm
	components []string
	fixed      string // parameters that are the same for each request
	now        func() time.Time
}

// NewSigner makes a signer from ECDSA keys of the curves P-256 and P-384 and
// RSA keys of at least 2048 bits. The clock gives the time of each signature;
// nil: the system's.
func NewSigner(key crypto.Signer, o SignatureOptions, now func() time.Time) (*Signer, error) {
	s := &Signer{key: key, now: now}
	if now == nil {
		s.now = time.Now
	}
	var err error
	if s.algorithm, err = algorithmFor(key.Public(), o.Algorithm); err != nil {
		return nil, fmt.Errorf("cannot sign requests: %w", err)
	}
	if s.components, err = coverable(o.Components); err != nil {
		return nil, fmt.Errorf("cannot sign requests: %w", err)
	}
	keyID := o.KeyID
	if keyID == "" {
		spki, err := x509.MarshalPKIXPublicKey(key.Public())
		if err != nil {
			return nil, fmt.Errorf("cannot sign requests: %w", err)
		}
		sum := sha256.Sum256(spki)
		keyID = hex.EncodeToString(sum[:])
	}
	quoted, ok := sfString(keyID)
	if !ok || len(keyID) > maxKeyID {
		return nil, fmt.Errorf("cannot sign requests: key id must be at most %d printable ASCII characters, is %.40q", maxKeyID, keyID)
	}
	s.fixed = ";keyid=" + quoted
	if o.NameAlgorithm {
		s.fixed += `;alg="` + string(s.algorithm) + `"`
	}
	return s, nil
}

func algorithmFor(public crypto.PublicKey, wanted Algorithm) (Algorithm, error) {
	var fit Algorithm
	switch key := public.(type) {
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256():
			fit = ECDSAP256SHA256
		case elliptic.P384():
			fit = ECDSAP384SHA384
		default:
			return "", errors.New("an ECDSA key must be of the curve P-256 or P-384")
		}
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minSigningRSA {
			return "", fmt.Errorf("an RSA key must have at least %d bits, has %d", minSigningRSA, bits)
		}
		fit = RSAv15SHA256
		if wanted == RSAPSSSHA512 {
			fit = wanted
		}
	default:
		return "", fmt.Errorf("the key must be ECDSA or RSA, is %T", public)
	}
	if wanted != "" && wanted != fit {
		return "", fmt.Errorf("the algorithm %.40q does not fit the key, %s does", string(wanted), fit)
	}
	return fit, nil
}

// coverable checks names of components and writes them as RFC 9421 does.
func coverable(names []string) ([]string, error) {
	if len(names) == 0 {
		return []string{"@method", "@target-uri", "content-digest"}, nil // AUTH-07
	}
	if len(names) > maxComponents {
		return nil, fmt.Errorf("%d components are to be covered, at most %d can be", len(names), maxComponents)
	}
	components := make([]string, 0, len(names))
	for _, name := range names {
		c := strings.ToLower(name) // the standard's text writes "Content-Digest"
		derived := []string{"@method", "@target-uri", "@authority", "@scheme", "@request-target", "@path", "@query"}
		switch {
		case slices.Contains(components, c):
			return nil, fmt.Errorf("component %.40q is to be covered twice", c)
		case strings.HasPrefix(c, "@") && !slices.Contains(derived, c):
			return nil, fmt.Errorf("component %.40q is not one that can be covered", c)
		case c == "host":
			return nil, errors.New(`the component for "host" is "@authority"`)
		case !strings.HasPrefix(c, "@") && !isFieldName(c), c == "signature", c == "signature-input":
			return nil, fmt.Errorf("component %.40q is not a header field that can be covered", c)
		}
		components = append(components, c)
	}
	return components, nil
}

// isFieldName reports whether s is a token of RFC 9110 in lower case.
func isFieldName(s string) bool {
	return s != "" && len(s) <= 128 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~") == ""
}

// Algorithm is the one that signatures are made with.
func (s *Signer) Algorithm() Algorithm { return s.algorithm }

// Sign adds Content-Digest, Signature-Input and Signature to a request, in
// place of any that it has. The body is what will be sent; nil or empty: none
// (AUTH-06 ... AUTH-08). Each attempt to send a request needs a signature of
// its own, since its time is part of it (AUTH-11).
func (s *Signer) Sign(r *http.Request, body []byte) error {
	r.Header.Del("Content-Digest")
	if len(body) > 0 {
		sum := sha256.Sum256(body) // of the raw bytes
		r.Header.Set("Content-Digest", "sha-256="+sfBytes(sum[:]))
	}
	base, input, err := signatureBase(r, s.components, ";created="+strconv.FormatInt(s.now().Unix(), 10)+s.fixed)
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
	var options crypto.SignerOpts = crypto.SHA256
	switch s.algorithm {
	case ECDSAP384SHA384:
		options = crypto.SHA384
	case RSAPSSSHA512:
		options = &rsa.PSSOptions{SaltLength: 64, Hash: crypto.SHA512}
	}
	h := options.HashFunc().New()
	h.Write(base)
	signature, err := s.key.Sign(rand.Reader, h.Sum(nil), options)
	if err != nil {
		return nil, err
	}
	switch s.algorithm {
	case ECDSAP256SHA256:
		return rawECDSA(signature, 32)
	case ECDSAP384SHA384:
		return rawECDSA(signature, 48)
	}
	return signature, nil
}

// rawECDSA gives r and s one after the other, each of the curve's size, where
// Go gives them as ASN.1.
func rawECDSA(der []byte, size int) ([]byte, error) {
	var pair struct{ R, S *big.Int }
	if rest, err := asn1.Unmarshal(der, &pair); err != nil || len(rest) > 0 {
		return nil, errors.New("the key made a signature that is not ECDSA")
	}
	if pair.R.Sign() <= 0 || pair.S.Sign() <= 0 || pair.R.BitLen() > size*8 || pair.S.BitLen() > size*8 {
		return nil, errors.New("the key made a signature that is not of its curve")
	}
	raw := make([]byte, 2*size)
	pair.R.FillBytes(raw[:size])
	pair.S.FillBytes(raw[size:])
	return raw, nil
}

// signatureBase gives the text that is signed (RFC 9421, 2.5), and the value of
// Signature-Input that goes with it.
func signatureBase(r *http.Request, components []string, parameters string) (base, input string, err error) {
	if r.URL.Opaque != "" || r.URL.Scheme == "" {
		return "", "", errors.New("the URL of the request is not absolute")
	}
	var lines, covered strings.Builder
	for _, component := range components {
		value, present, err := componentValue(r, component)
		if err != nil {
			return "", "", err
		}
		if !present {
			continue
		}
		if covered.Len() > 0 {
			covered.WriteByte(' ')
		}
		covered.WriteString(`"` + component + `"`)
		lines.WriteString(`"` + component + `": ` + value + "\n")
	}
	input = "(" + covered.String() + ")" + parameters
	return lines.String() + `"@signature-params": ` + input, input, nil
}

// componentValue is what a component stands for in a request as net/http sends
// it. A request without the header field has none.
func componentValue(r *http.Request, component string) (value string, present bool, err error) {
	switch component {
	case "@method":
		value = r.Method
		if value == "" {
			value = http.MethodGet
		}
	case "@scheme":
		value = strings.ToLower(r.URL.Scheme)
	case "@authority":
		value = authority(r)
	case "@target-uri":
		value = r.URL.Scheme + "://" + sentHost(r) + r.URL.RequestURI()
	case "@request-target":
		value = r.URL.RequestURI()
	case "@path":
		if value = r.URL.EscapedPath(); value == "" {
			value = "/"
		}
	case "@query":
		value = "?" + r.URL.RawQuery
	case "content-length": // net/http adds it when it sends
		if r.ContentLength <= 0 {
			return "", false, nil
		}
		value = strconv.FormatInt(r.ContentLength, 10)
	default:
		values := r.Header.Values(component)
		if len(values) == 0 {
			return "", false, nil
		}
		trimmed := make([]string, len(values))
		for i, v := range values {
			trimmed[i] = strings.Trim(v, " \t")
		}
		value = strings.Join(trimmed, ", ")
	}
	// A line break would let one component look like two.
	if strings.ContainsFunc(value, func(c rune) bool { return c != '\t' && (c < ' ' || c > '~') }) {
		return "", false, fmt.Errorf("its %q has characters that are not printable ASCII", component)
	}
	return value, true, nil
}

// sentHost is the Host field as net/http sends it.
func sentHost(r *http.Request) string {
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	// The zone of an IPv6 address means nothing to others and is not sent.
	zone, end := strings.LastIndexByte(host, '%'), strings.LastIndexByte(host, ']')
	if strings.HasPrefix(host, "[") && zone > 0 && zone < end {
		host = host[:zone] + host[end:]
	}
	return host
}

// authority is the normal form: lower case, without the scheme's own port.
func authority(r *http.Request) string {
	host := strings.ToLower(sentHost(r))
	standard := map[string]string{"https": ":443", "http": ":80"}[strings.ToLower(r.URL.Scheme)]
	if bare := strings.TrimSuffix(host, standard); (&url.URL{Host: host}).Port() != "" {
		return bare
	}
	return host
}

// sfString is a string of RFC 9651, and false where it cannot be one.
func sfString(s string) (string, bool) {
	if strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) {
		return "", false
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`, true
}

// sfBytes is a byte sequence of RFC 9651.
func sfBytes(b []byte) string { return ":" + base64.StdEncoding.EncodeToString(b) + ":" }
