package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// Window of the time of creation (AUTH-11).
const (
	MaxAge   = 5 * time.Minute
	MaxAhead = 30 * time.Second
)

// Rule is what a refused message breaks.
type Rule string

// The rules, each with an answer of its own in the standard: a digest is 400,
// everything else 401.
const (
	Digest    Rule = "content-digest" // missing, malformed, or of another body (AUTH-06)
	Form      Rule = "form"           // no signature, or one that cannot be read (AUTH-08)
	Coverage  Rule = "coverage"       // something that has to be covered is not (AUTH-07)
	Freshness Rule = "freshness"      // created too long ago, or in the future (AUTH-11)
	Algorithm Rule = "algorithm"      // none of the standard's, or none for this key (AUTH-09)
	Signature Rule = "signature"      // not made with this key over this message
)

// Refusal says why a message is not believed.
type Refusal struct {
	Rule   Rule
	Detail string
}

func (r *Refusal) Error() string { return string(r.Rule) + ": " + r.Detail }

func refuse(rule Rule, format string, args ...any) *Refusal {
	return &Refusal{rule, fmt.Sprintf(format, args...)}
}

// Verified is what a signature says of itself.
type Verified struct {
	Label     string
	KeyID     string
	Created   time.Time
	Algorithm string // that was used; it need not have been named
	Covered   []string
	Bytes     []byte // the signature, to recognise it when it comes again
}

// Message is a request as the server received it.
type Message struct {
	Request *http.Request
	Scheme  string // https, unless a test speaks plain HTTP
	Body    []byte // all of it
}

// Verify checks that the message was signed with a key, within the window
// around now.
func Verify(m Message, key crypto.PublicKey, now time.Time) (*Verified, error) {
	if refusal := m.checkDigest(); refusal != nil {
		return nil, refusal
	}
	label, list, signature, refusal := m.fields()
	if refusal != nil {
		return nil, refusal
	}
	v := &Verified{Label: label, Bytes: signature}
	if refusal := v.parameters(list.Params, now); refusal != nil {
		return nil, refusal
	}
	base, refusal := m.base(list, v)
	if refusal != nil {
		return nil, refusal
	}
	wanted := []string{"@method", "@target-uri"}
	if len(m.Body) > 0 {
		wanted = append(wanted, "content-digest")
	}
	for _, name := range wanted {
		if !slices.Contains(v.Covered, name) {
			return nil, refuse(Coverage, "%q is not covered, only %q", name, v.Covered)
		}
	}
	if refusal := v.check(key, base); refusal != nil {
		return nil, refusal
	}
	return v, nil
}

// checkDigest holds Content-Digest against the body. The header belongs to
// requests with a body and to no others.
func (m Message) checkDigest() *Refusal {
	values := m.Request.Header.Values("Content-Digest")
	switch {
	case len(m.Body) == 0 && len(values) > 0:
		return refuse(Digest, "Content-Digest is for requests with a body")
	case len(m.Body) == 0:
		return nil
	case len(values) == 0:
		return refuse(Digest, "Content-Digest is missing")
	}
	dictionary, err := httpsfv.UnmarshalDictionary(values)
	if err != nil {
		return refuse(Digest, "Content-Digest cannot be read: %v", err)
	}
	member, ok := dictionary.Get("sha-256")
	item, isItem := member.(httpsfv.Item)
	stated, isBytes := item.Value.([]byte)
	if !ok || !isItem || !isBytes {
		return refuse(Digest, "Content-Digest has no sha-256")
	}
	if sum := sha256.Sum256(m.Body); subtle.ConstantTimeCompare(sum[:], stated) != 1 {
		return refuse(Digest, "Content-Digest is that of another body")
	}
	return nil
}

// fields gives the one signature of the message. Of several, one might say
// this and another that.
func (m Message) fields() (label string, list httpsfv.InnerList, signature []byte, refusal *Refusal) {
	read := func(name string) (string, httpsfv.Member, *Refusal) {
		values := m.Request.Header.Values(name)
		if len(values) == 0 {
			return "", nil, refuse(Form, "%s is missing", name)
		}
		dictionary, err := httpsfv.UnmarshalDictionary(values)
		if err != nil {
			return "", nil, refuse(Form, "%s cannot be read: %v", name, err)
		}
		names := dictionary.Names()
		if len(names) != 1 {
			return "", nil, refuse(Form, "%s has %d members, want one", name, len(names))
		}
		member, _ := dictionary.Get(names[0])
		return names[0], member, nil
	}
	label, input, refusal := read("Signature-Input")
	if refusal != nil {
		return "", list, nil, refusal
	}
	other, value, refusal := read("Signature")
	if refusal != nil {
		return "", list, nil, refusal
	}
	list, isList := input.(httpsfv.InnerList)
	item, isItem := value.(httpsfv.Item)
	signature, isBytes := item.Value.([]byte)
	switch {
	case other != label:
		return "", list, nil, refuse(Form, "Signature-Input is labelled %q, Signature %q", label, other)
	case !isList:
		return "", list, nil, refuse(Form, "Signature-Input is no list of components")
	case !isItem || !isBytes:
		return "", list, nil, refuse(Form, "Signature is no byte sequence")
	}
	return label, list, signature, nil
}

func (v *Verified) parameters(params *httpsfv.Params, now time.Time) *Refusal {
	created, ok := params.Get("created")
	seconds, isInteger := created.(int64)
	if !ok || !isInteger {
		return refuse(Form, "the parameter created is missing or no integer")
	}
	v.Created = time.Unix(seconds, 0)
	keyID, ok := params.Get("keyid")
	if v.KeyID, _ = keyID.(string); !ok || v.KeyID == "" {
		return refuse(Form, "the parameter keyid is missing or no text")
	}
	if algorithm, ok := params.Get("alg"); ok {
		if v.Algorithm, _ = algorithm.(string); v.Algorithm == "" {
			return refuse(Algorithm, "the parameter alg is no text")
		}
	}
	if expires, ok := params.Get("expires"); ok {
		seconds, isInteger := expires.(int64)
		if !isInteger || now.After(time.Unix(seconds, 0)) {
			return refuse(Freshness, "it has expired")
		}
	}
	switch {
	case v.Created.Before(now.Add(-MaxAge)):
		return refuse(Freshness, "created %s ago, at most %s are allowed", now.Sub(v.Created).Round(time.Second), MaxAge)
	case v.Created.After(now.Add(MaxAhead)):
		return refuse(Freshness, "created %s in the future, at most %s are allowed", v.Created.Sub(now).Round(time.Second), MaxAhead)
	}
	return nil
}

// base is what was signed (RFC 9421, 2.5).
func (m Message) base(list httpsfv.InnerList, v *Verified) ([]byte, *Refusal) {
	var base strings.Builder
	for _, item := range list.Items {
		name, ok := item.Value.(string)
		switch {
		case !ok:
			return nil, refuse(Form, "a component is no text")
		case item.Params != nil && len(item.Params.Names()) > 0:
			return nil, refuse(Form, "component %q has parameters, of which the standard uses none", name)
		case slices.Contains(v.Covered, name):
			return nil, refuse(Form, "component %q occurs twice", name)
		case name != strings.ToLower(name):
			return nil, refuse(Form, "component %q is not in lower case", name)
		}
		value, refusal := m.component(name)
		if refusal != nil {
			return nil, refusal
		}
		v.Covered = append(v.Covered, name)
		fmt.Fprintf(&base, "%q: %s\n", name, value)
	}
	parameters, err := httpsfv.Marshal(httpsfv.List{list})
	if err != nil {
		return nil, refuse(Form, "Signature-Input cannot be written: %v", err)
	}
	base.WriteString(`"@signature-params": ` + parameters)
	return []byte(base.String()), nil
}

// component is the value of a component of the message (RFC 9421, 2.1 and 2.2).
func (m Message) component(name string) (string, *Refusal) {
	r := m.Request
	target := r.RequestURI // as it was sent, which a parsed URL need not be
	if target == "" {
		target = r.URL.RequestURI()
	}
	path, query, hasQuery := strings.Cut(target, "?")
	switch name {
	case "@method":
		return r.Method, nil
	case "@target-uri":
		return m.Scheme + "://" + r.Host + target, nil
	case "@authority":
		return strings.TrimSuffix(strings.ToLower(r.Host), map[string]string{"https": ":443", "http": ":80"}[m.Scheme]), nil
	case "@scheme":
		return m.Scheme, nil
	case "@request-target":
		return target, nil
	case "@path":
		return path, nil
	case "@query":
		if !hasQuery {
			return "?", nil
		}
		return "?" + query, nil
	}
	if strings.HasPrefix(name, "@") {
		return "", refuse(Form, "component %q is not one of a request", name)
	}
	if name == "host" {
		return r.Host, nil // net/http keeps it apart
	}
	values := r.Header.Values(name)
	if len(values) == 0 {
		return "", refuse(Form, "component %q is not in the message", name)
	}
	var trimmed []string
	for _, value := range values {
		trimmed = append(trimmed, strings.TrimSpace(value))
	}
	return strings.Join(trimmed, ", "), nil
}

// algorithm is one of those that the standard lists, or the one that RFC 9421
// registers where the standard names one that nobody registered.
type algorithm struct {
	name   string
	verify func(key crypto.PublicKey, base, signature []byte) (fits, good bool)
}

func algorithms() []algorithm {
	return []algorithm{
		{"ecdsa-p256-sha256", func(key crypto.PublicKey, base, signature []byte) (bool, bool) {
			sum := sha256.Sum256(base)
			return verifyECDSA(key, 256, sum[:], signature)
		}},
		{"ecdsa-p384-sha384", func(key crypto.PublicKey, base, signature []byte) (bool, bool) {
			sum := sha512.Sum384(base)
			return verifyECDSA(key, 384, sum[:], signature)
		}},
		{"rsa-v1_5-sha256", func(key crypto.PublicKey, base, signature []byte) (bool, bool) {
			public, ok := key.(*rsa.PublicKey)
			sum := sha256.Sum256(base)
			return ok, ok && rsa.VerifyPKCS1v15(public, crypto.SHA256, sum[:], signature) == nil
		}},
		{"rsa-pss-sha256", func(key crypto.PublicKey, base, signature []byte) (bool, bool) {
			public, ok := key.(*rsa.PublicKey)
			sum := sha256.Sum256(base)
			return ok, ok && rsa.VerifyPSS(public, crypto.SHA256, sum[:], signature, nil) == nil
		}},
		{"rsa-pss-sha512", func(key crypto.PublicKey, base, signature []byte) (bool, bool) {
			public, ok := key.(*rsa.PublicKey)
			sum := sha512.Sum512(base)
			return ok, ok && rsa.VerifyPSS(public, crypto.SHA512, sum[:], signature, nil) == nil
		}},
	}
}

// verifyECDSA checks a signature in the form r||s (RFC 9421, 3.3.4), not ASN.1.
func verifyECDSA(key crypto.PublicKey, bits int, sum, signature []byte) (fits, good bool) {
	public, ok := key.(*ecdsa.PublicKey)
	if !ok || public.Curve.Params().BitSize != bits {
		return false, false
	}
	half := bits / 8
	if len(signature) != 2*half {
		return true, false
	}
	return true, ecdsa.Verify(public, sum, new(big.Int).SetBytes(signature[:half]), new(big.Int).SetBytes(signature[half:]))
}

func (v *Verified) check(key crypto.PublicKey, base []byte) *Refusal {
	named := v.Algorithm
	fits := false
	for _, a := range algorithms() {
		if named != "" && named != a.name {
			continue
		}
		suits, good := a.verify(key, base, v.Bytes)
		if good {
			v.Algorithm = a.name
			return nil
		}
		fits = fits || suits
	}
	switch {
	case fits:
		return refuse(Signature, "it was not made with the client's key over this message")
	case named != "":
		return refuse(Algorithm, "%q is not one for a key of type %T", named, key)
	}
	return refuse(Algorithm, "there is none for a key of type %T", key)
}
