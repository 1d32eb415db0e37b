package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/yaronf/httpsign"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/test/expect"
)

const body = `{"hello": "world"}`

// now is when the tests take place.
var now = time.Unix(1_700_000_000, 0)

// report is what is signed.
func report(t *testing.T) *http.Request {
	t.Helper()
	request := expect.Value(http.NewRequest(http.MethodPost, "https://wfm.example:8443/a?b=%20c", strings.NewReader(body)))(t)
	request.Header.Set("Content-Type", "application/json")
	return request
}

// signed is a report with a signature of the agent's form that was made at a time.
func signed(t *testing.T, key crypto.Signer, at time.Time) *http.Request {
	t.Helper()
	request := report(t)
	signer := expect.Value(identity.NewSigner(key, func() time.Time { return at }))(t)
	expect.Check(t, signer.Sign(request, []byte(body)))
	return request
}

// signedBy is a report with a signature of another form, made now.
func signedBy(t *testing.T, signer *httpsign.Signer, err error) *http.Request {
	t.Helper()
	expect.Check(t, err)
	request := report(t)
	digest := expect.Value(httpsign.GenerateContentDigestHeader(&request.Body, []string{httpsign.DigestSha256}))(t)
	request.Header.Set("Content-Digest", digest)
	input, signature, err := httpsign.SignRequest("sig1", *signer, request)
	expect.Check(t, err)
	request.Header.Set("Signature-Input", input)
	request.Header.Set("Signature", signature)
	return request
}

func TestWhatIsNotCoveredIsNotBelieved(t *testing.T) {
	key := expect.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	for missing, covered := range map[string][]string{
		"":       {"@method", "@target-uri", "@authority", "content-digest", "content-type"},
		"method": {"@target-uri", "content-digest"},
		"target": {"@method", "@path", "content-digest"},
		"body":   {"@method", "@target-uri"},
	} {
		signer, err := httpsign.NewP256Signer(*key, httpsign.NewSignConfig().SignAlg(true).SetKeyID("key"), httpsign.Headers(covered...))
		if believed := Verify(signedBy(t, signer, err), []byte(body), key.Public(), time.Now()) == nil; believed != (missing == "") {
			t.Errorf("without %q: believed %v", missing, believed)
		}
	}
}

func TestWhatIsNotSignedSoundlyIsRefused(t *testing.T) {
	key := expect.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	input := func(old, new string) func(*http.Request) {
		return func(r *http.Request) {
			text := r.Header.Get("Signature-Input")
			expect.True(t, strings.Contains(text, old), "%s has no %s", text, old)
			r.Header.Set("Signature-Input", strings.Replace(text, old, new, 1))
		}
	}
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for name, c := range map[string]struct {
		at     time.Duration
		change func(*http.Request)
		body   string // that arrives; default: the one that was sent
		digest bool   // it is the digest that is wrong
	}{
		"nothing is wrong":           {at: MaxAhead},
		"created too long ago":       {at: -MaxAge - time.Second},
		"created in the future":      {at: MaxAhead + time.Second},
		"expired":                    {change: input(";keyid", ";expires=1;keyid")},
		"no digest":                  {change: func(r *http.Request) { r.Header.Del("Content-Digest") }, digest: true},
		"another body":               {body: "else", digest: true},
		"no body":                    {body: " ", digest: true},
		"another digest":             {change: header("Content-Digest", "sha-512=:AAAA:"), digest: true},
		"no input":                   {change: func(r *http.Request) { r.Header.Del("Signature-Input") }},
		"no signature":               {change: func(r *http.Request) { r.Header.Del("Signature") }},
		"two signatures":             {change: func(r *http.Request) { r.Header.Add("Signature", "sig2=:AAAA:") }},
		"two inputs":                 {change: func(r *http.Request) { r.Header.Add("Signature-Input", "sig2=();created=1") }},
		"another label":              {change: header("Signature", "sig2=:AAAA:")},
		"no created":                 {change: input("created", "made")},
		"no keyid":                   {change: input("keyid", "name")},
		"an algorithm of other keys": {change: input(";keyid", `;alg="rsa-v1_5-sha256";keyid`)},
		"another host":               {change: func(r *http.Request) { r.Host = "else.example" }},
	} {
		t.Run(name, func(t *testing.T) {
			request := signed(t, key, now.Add(c.at))
			if c.change != nil {
				c.change(request)
			}
			arrived := body
			if c.body != "" {
				arrived = strings.TrimSpace(c.body)
			}
			err := Verify(request, []byte(arrived), key.Public(), now)
			if believed := name == "nothing is wrong"; (err == nil) != believed || errors.Is(err, ErrDigest) != c.digest {
				t.Errorf("got %v", err)
			}
		})
	}
}
