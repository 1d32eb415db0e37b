package identity_test

import (
	"bufio"
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/yaronf/httpsign"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/test/expect"
)

// verifier is somebody else's implementation of RFC 9421. It wants to see
// certain components covered.
func verifier(t testing.TB, public crypto.PublicKey, components ...string) *httpsign.Verifier {
	t.Helper()
	fields := httpsign.Headers(components...)
	config := httpsign.NewVerifyConfig().SetNotOlderThan(time.Minute)
	switch key := public.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P384() {
			return expect.Value(httpsign.NewP384Verifier(*key, config, fields))(t)
		}
		return expect.Value(httpsign.NewP256Verifier(*key, config, fields))(t)
	case *rsa.PublicKey:
		return expect.Value(httpsign.NewRSAVerifier(*key, config, fields))(t)
	}
	t.Fatalf("no verifier for %T", public)
	return nil
}

// overWire is the request as a server reads it.
func overWire(t testing.TB, r *http.Request) *http.Request {
	t.Helper()
	var b bytes.Buffer
	check(t, r.Write(&b))
	received := expect.Value(http.ReadRequest(bufio.NewReader(&b)))(t)
	received.URL.Scheme = "https"
	return received
}

func request(t testing.TB, method, url string, body string) *http.Request {
	t.Helper()
	return expect.Value(http.NewRequest(method, url, strings.NewReader(body)))(t)
}

func p256() *ecdsa.PrivateKey { return expect.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) }

func TestAUTH09SignaturesOfEachAlgorithmVerifyElsewhere(t *testing.T) {
	tests := map[string]struct {
		key    crypto.Signer
		length int
	}{
		"ECDSA P-256":     {p256(), 64},
		"ECDSA P-384":     {expect.Value(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))(t), 96},
		"RSA PKCS#1 v1.5": {expect.Value(rsa.GenerateKey(rand.Reader, 2048))(t), 256},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := expect.Value(identity.NewSigner(test.key, nil))(t)
			for range 20 { // numbers that are shorter than usual
				const body = `{"hello": "world"}`
				r := request(t, http.MethodPost, "https://192.0.2.1/margo/api/v1/clients/1/capabilities/a~b?x=%20y", body)
				r.Host = "[fe80::1%eth0]:8443" // sent without its zone
				check(t, s.Sign(r, []byte(body)))
				// "sig1=:" + base64 + ":"
				if got := len(r.Header.Get("Signature")) - len("sig1=::"); got != (test.length+2)/3*4 {
					t.Fatalf("the signature has %d characters, want those of %d bytes", got, test.length)
				}
				received := overWire(t, r)
				digest := received.Header.Values("Content-Digest")
				check(t, httpsign.ValidateContentDigestHeader(digest, &received.Body, []string{"sha-256"}))
				v := verifier(t, test.key.Public(), "@method", "@target-uri", "content-digest")
				check(t, httpsign.VerifyRequest("sig1", *v, received))
				received.Method = http.MethodPut
				expect.Equal(t, httpsign.VerifyRequest("sig1", *v, received) == nil, false, "the verifier accepts another method")
			}
		})
	}
}

func TestAUTH06ContentDigestIsThatOfTheRawBody(t *testing.T) {
	s := expect.Value(identity.NewSigner(p256(), nil))(t)
	r := request(t, http.MethodPost, "https://wfm.example/", "")
	r.Header.Set("Content-Digest", "sha-256=:b2xk:")
	check(t, s.Sign(r, []byte(`{"hello": "world"}`)))
	// The value that RFC 9530 and the standard give for these 18 bytes.
	expect.Equal(t, r.Header.Get("Content-Digest"), "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:", "digest")
	check(t, s.Sign(r, nil))
	expect.Equal(t, r.Header.Values("Content-Digest"), nil, "digests of a request without a body")
	expect.Contains(t, r.Header.Get("Signature-Input"), `sig1=("@method" "@target-uri");created=`, "signed without a body")
}

func TestAUTH07AUTH08AUTH11WhatIsCoveredByWhichKeyAndWhen(t *testing.T) {
	key := p256()
	sum := sha256.Sum256(expect.Value(x509.MarshalPKIXPublicKey(key.Public()))(t))
	now := time.Unix(1777777776, 999)
	s := expect.Value(identity.NewSigner(key, func() time.Time { now = now.Add(time.Second); return now }))(t)
	r := request(t, http.MethodPost, "https://wfm.example/", "body")
	for _, created := range []string{"1777777777", "1777777778"} {
		check(t, s.Sign(r, []byte("body")))
		want := `sig1=("@method" "@target-uri" "content-digest");created=` + created + `;keyid="` + hex.EncodeToString(sum[:]) + `"`
		expect.Equal(t, r.Header.Values("Signature-Input"), []string{want}, "what is signed")
	}
}

func TestSignerRefusesWhatCannotBeSigned(t *testing.T) {
	_, edKey, _ := ed25519.GenerateKey(rand.Reader)
	for name, test := range map[string]struct {
		key  crypto.Signer
		text string
	}{
		"a short RSA key":     {expect.Value(rsa.GenerateKey(rand.Reader, 1024))(t), "at least 2048 bits, it has 1024"},
		"another curve":       {expect.Value(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))(t), "P-256 or P-384"},
		"another kind of key": {edKey, "ECDSA or RSA"},
	} {
		t.Run(name, func(t *testing.T) {
			expect.ErrorWith(t, expect.ErrorOf(identity.NewSigner(test.key, nil)), test.text, "error")
		})
	}
	s := expect.Value(identity.NewSigner(p256(), nil))(t)
	for name, change := range map[string]func(r *http.Request){
		"a host of two lines":        func(r *http.Request) { r.Host = "wfm.example\n\"@method\": GET" },
		"a host in other signs":      func(r *http.Request) { r.Host = "wfm.exämple" },
		"a URL that is not absolute": func(r *http.Request) { r.URL = &url.URL{Path: "/"} },
		"an opaque URL":              func(r *http.Request) { r.URL.Opaque = "//elsewhere.example/" },
	} {
		r := request(t, http.MethodGet, "https://wfm.example/", "")
		change(r)
		if err := s.Sign(r, nil); err == nil || r.Header.Get("Signature") != "" {
			t.Errorf("%s: error %v, signature %q", name, err, r.Header.Get("Signature"))
		}
	}
}

// FuzzSign signs requests for odd URLs. What is signed arrives, and verifies there.
func FuzzSign(f *testing.F) {
	for _, seed := range []string{
		"https://wfm.example/", "https://WFM.Example:443", "https://wfm.example/a%2Fb%2f/%7e;c=d?x=%20&y=+", "https://wfm.example//a//?",
		"https://[::1]:8443/?%zz;", "https://wfm.example/ä?ü", "https://wfm.example/.././a", "https://wfm.example/*?*#f", "https://user:pw@wfm.example/%00", "https://wfm>",
	} {
		f.Add(seed, []byte("{}"))
	}
	f.Add("https://wfm.example/", []byte{})
	key := p256()
	s := expect.Value(identity.NewSigner(key, nil))(f)
	f.Fuzz(func(t *testing.T, target string, body []byte) {
		r, err := http.NewRequest(http.MethodPost, target, bytes.NewReader(body))
		if err != nil || r.URL.Scheme != "https" || s.Sign(r, body) != nil {
			return
		}
		var b bytes.Buffer
		if r.Write(&b) != nil {
			return // net/http does not send it
		}
		line, _, _ := strings.Cut(b.String(), " HTTP/1.1\r\n")
		received, err := http.ReadRequest(bufio.NewReader(&b))
		if err != nil {
			return
		}
		if got := r.URL.RequestURI(); line != "POST "+got {
			t.Fatalf("sent as %q, signed as %q", line, got)
		}
		if received.Host == "" { // net/http sends none that cannot be one
			return
		}
		// What the other implementation has ideas of its own about.
		if _, err := url.ParseQuery(received.URL.RawQuery); err != nil || received.URL.EscapedPath() != received.URL.Path ||
			received.URL.ForceQuery || received.URL.Host != "" {
			return
		}
		received.URL.Scheme = "https"
		if err := httpsign.VerifyRequest("sig1", *verifier(t, key.Public()), received); err != nil {
			t.Fatalf("%v\n%q", err, received.Header)
		}
	})
}
