package signature

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/yaronf/httpsign"
)

// The example of RFC 9421, B.2.3, with the key of B.1.2.
const (
	exampleInput = `sig-b23=("date" "@method" "@path" "@query" "@authority" "content-type" "content-digest" "content-length")` +
		`;created=1618884473;keyid="test-key-rsa-pss"`
	exampleSignature = "bbN8oArOxYoyylQQUU6QYwrTuaxLwjAC9fbY2F6SVWvh0yBiMIRGOnMYwZ/5MR6fb0Kh1rIRASVxFkeGt683" +
		"+qRpRRU5p2voTp768ZrCUb38K0fUxN0O0iC59DzYx8DFll5GmydPxSmme9v6ULbMFkl+V5B1TP/yPViV7KsLNmvKiLJH1pFkh/aYA2HX" +
		"XZzNBXmIkoQoLd7YfW91kE9o/CCoC1xMy7JA1ipwvKvfrs65ldmlu9bpG6A9BmzhuzF8Eim5f8ui9eH8LZH896+QIF61ka39VBrohr9i" +
		"yMUJpvRX2Zbhl5ZJzSRxpJyoEZAFL2FUo5fTIztsDZKEgM4cUA=="
	exampleKey = `-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAr4tmm3r20Wd/PbqvP1s2
+QEtvpuRaV8Yq40gjUR8y2Rjxa6dpG2GXHbPfvMs8ct+Lh1GH45x28Rw3Ry53mm+
oAXjyQ86OnDkZ5N8lYbggD4O3w6M6pAvLkhk95AndTrifbIFPNU8PPMO7OyrFAHq
gDsznjPFmTOtCEcN2Z1FpWgchwuYLPL+Wokqltd11nqqzi+bJ9cvSKADYdUAAN5W
Utzdpiy6LbTgSxP7ociU4Tn0g5I6aDZJ7A8Lzo0KSyZYoA485mqcO0GVAdVw9lq4
aOT9v6d+nb4bnNkQVklLQ3fVAvJm+xdDOp9LCNCN48V2pnDOkFV6+U9nV5oyc6XI
2wIDAQAB
-----END PUBLIC KEY-----
`
)

func TestTheExampleOfTheRFCIsVerified(t *testing.T) {
	request, err := http.NewRequest(http.MethodPost, "https://example.com/foo?param=Value&Pet=dog", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = http.Header{
		"Date":           {"Tue, 20 Apr 2021 02:07:55 GMT"},
		"Content-Type":   {"application/json"},
		"Content-Length": {"18"},
		"Content-Digest": {"sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:"},
	}
	dictionary, err := httpsfv.UnmarshalDictionary([]string{exampleInput})
	if err != nil {
		t.Fatal(err)
	}
	member, _ := dictionary.Get("sig-b23")
	v := &Verified{}
	base, refusal := Message{Request: request, Scheme: "https"}.base(member.(httpsfv.InnerList), v)
	if refusal != nil {
		t.Fatal(refusal)
	}
	if v.Bytes, err = base64.StdEncoding.DecodeString(exampleSignature); err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(strings.TrimSpace(exampleKey)))
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if refusal := v.check(key, base); refusal != nil || v.Algorithm != "rsa-pss-sha512" {
		t.Errorf("%v, %q, base\n%s", refusal, v.Algorithm, base)
	}
}

// The base that the standard shows, of a report.
func TestAUTH07TheBaseIsThatOfTheStandard(t *testing.T) {
	const want = `"@method": POST
"@target-uri": https://wfm.example.com/api/v1/clients/1234/deployments/a3e2f5dc-912e-494f-8395-52cf3769bc06/status
"content-digest": sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:
"@signature-params": ("@method" "@target-uri" "content-digest");created=1680575171;keyid="3f0c"`
	request := post(t, "https://wfm.example.com/api/v1/clients/1234/deployments/a3e2f5dc-912e-494f-8395-52cf3769bc06/status", `{"hello": "world"}`)
	key := ecdsaKey(t, elliptic.P256())
	if err := (Signer{Key: key, KeyID: "3f0c", Created: time.Unix(1680575171, 0)}).Sign(request); err != nil {
		t.Fatal(err)
	}
	_, list, _, refusal := Message{Request: request}.fields()
	if refusal != nil {
		t.Fatal(refusal)
	}
	base, refusal := Message{Request: request, Scheme: "https"}.base(list, &Verified{})
	if refusal != nil || string(base) != want {
		t.Errorf("%v\n%s", refusal, base)
	}
}

func post(t *testing.T, url, body string) *http.Request {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return request
}

func ecdsaKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func rsaKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

const body = `{"hello": "world"}`

func TestAUTH09EveryAlgorithmIsVerified(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	p256, p384, old := ecdsaKey(t, elliptic.P256()), ecdsaKey(t, elliptic.P384()), rsaKey(t)
	for _, c := range []struct {
		key       crypto.Signer
		algorithm string
	}{
		{p256, "ecdsa-p256-sha256"},
		{p384, "ecdsa-p384-sha384"},
		{old, "rsa-v1_5-sha256"},
		{old, "rsa-pss-sha256"},
		{old, "rsa-pss-sha512"},
	} {
		for _, named := range []bool{false, true} {
			request := post(t, "https://wfm.example:8443/a?b=%20c", body)
			if err := (Signer{Key: c.key, Algorithm: c.algorithm, NameAlgorithm: named, Created: now}).Sign(request); err != nil {
				t.Fatal(err)
			}
			v, err := Verify(Message{request, "https", []byte(body)}, c.key.Public(), now)
			if err != nil || v.Algorithm != c.algorithm || v.KeyID != "key" || v.Label != "sig1" {
				t.Errorf("%s, named %v: %+v, %v", c.algorithm, named, v, err)
			}
		}
	}
}

func TestWhatIsNotSignedSoundlyIsRefused(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	key, p384, old := ecdsaKey(t, elliptic.P256()), ecdsaKey(t, elliptic.P384()), rsaKey(t)
	good := Signer{Key: key, Created: now}
	for name, c := range map[string]struct {
		sign   func(*Signer)
		change func(*http.Request)
		body   string // that arrives; default: the one that was sent
		want   Rule   // empty: it is accepted
	}{
		"as it should be": {},
		"with more components": {sign: func(s *Signer) {
			s.Components = []string{"@method", "@target-uri", "@authority", "content-digest", "content-type"}
		}},
		"with every derived component": {sign: func(s *Signer) {
			s.Components = []string{"@method", "@target-uri", "content-digest", "@path", "@query", "@scheme", "@request-target", "host"}
		}},
		"AUTH-11 created at the edges":       {sign: func(s *Signer) { s.Created = now.Add(-MaxAge) }},
		"AUTH-11 created a moment ahead":     {sign: func(s *Signer) { s.Created = now.Add(MaxAhead) }},
		"AUTH-11 created too long ago":       {sign: func(s *Signer) { s.Created = now.Add(-MaxAge - time.Second) }, want: Freshness},
		"AUTH-11 created in the future":      {sign: func(s *Signer) { s.Created = now.Add(MaxAhead + time.Second) }, want: Freshness},
		"AUTH-07 the method is not covered":  {sign: func(s *Signer) { s.Components = []string{"@target-uri", "content-digest"} }, want: Coverage},
		"AUTH-07 the target is not covered":  {sign: func(s *Signer) { s.Components = []string{"@method", "@path", "content-digest"} }, want: Coverage},
		"AUTH-07 the body is not covered":    {sign: func(s *Signer) { s.Components = []string{"@method", "@target-uri"} }, want: Coverage},
		"AUTH-06 no digest":                  {change: func(r *http.Request) { r.Header.Del("Content-Digest") }, want: Digest},
		"AUTH-06 a digest of something else": {body: "else", want: Digest},
		"AUTH-06 another digest": {change: func(r *http.Request) {
			sum := sha512.Sum512([]byte(body))
			r.Header.Set("Content-Digest", "sha-512=:"+base64.StdEncoding.EncodeToString(sum[:])+":")
		}, want: Digest},
		"AUTH-06 a digest in hex":     {change: func(r *http.Request) { r.Header.Set("Content-Digest", "sha-256=deadbeef") }, want: Digest},
		"AUTH-06 no structured field": {change: func(r *http.Request) { r.Header.Set("Content-Digest", "sha-256=:%%") }, want: Digest},
		"AUTH-08 no input":            {change: func(r *http.Request) { r.Header.Del("Signature-Input") }, want: Form},
		"AUTH-08 no signature":        {change: func(r *http.Request) { r.Header.Del("Signature") }, want: Form},
		"AUTH-08 two signatures":      {change: func(r *http.Request) { r.Header.Add("Signature-Input", "sig2=();created=1") }, want: Form},
		"AUTH-08 another label":       {change: func(r *http.Request) { r.Header.Set("Signature", "sig2=:AAAA:") }, want: Form},
		"AUTH-08 a signature of text": {change: func(r *http.Request) { r.Header.Set("Signature", `sig1="AAAA"`) }, want: Form},
		"AUTH-08 no created": {change: func(r *http.Request) {
			r.Header.Set("Signature-Input", `sig1=("@method" "@target-uri" "content-digest");keyid="key"`)
		}, want: Form},
		"AUTH-08 no keyid": {change: func(r *http.Request) {
			r.Header.Set("Signature-Input", `sig1=("@method" "@target-uri" "content-digest");created=1700000000`)
		}, want: Form},
		"AUTH-08 created as text": {change: func(r *http.Request) {
			r.Header.Set("Signature-Input", `sig1=("@method" "@target-uri" "content-digest");created="1700000000";keyid="key"`)
		}, want: Form},
		"AUTH-07 a capital letter": {change: func(r *http.Request) {
			r.Header.Set("Signature-Input", strings.Replace(r.Header.Get("Signature-Input"), "content-digest", "Content-Digest", 1))
		}, want: Form},
		"AUTH-07 a component that is not there": {change: func(r *http.Request) {
			r.Header.Set("Signature-Input", strings.Replace(r.Header.Get("Signature-Input"), `"@method"`, `"@method" "date"`, 1))
		}, want: Form},
		"AUTH-07 a component of answers": {change: func(r *http.Request) {
			r.Header.Set("Signature-Input", strings.Replace(r.Header.Get("Signature-Input"), `"@method"`, `"@method" "@status"`, 1))
		}, want: Form},
		"AUTH-07 a component twice": {change: func(r *http.Request) {
			r.Header.Set("Signature-Input", strings.Replace(r.Header.Get("Signature-Input"), `"@method"`, `"@method" "@method"`, 1))
		}, want: Form},
		"AUTH-07 a component with parameters": {change: func(r *http.Request) {
			r.Header.Set("Signature-Input", strings.Replace(r.Header.Get("Signature-Input"), `"@method"`, `"@method";req`, 1))
		}, want: Form},
		"another method":          {change: func(r *http.Request) { r.Method = http.MethodPut }, want: Signature},
		"another path":            {change: func(r *http.Request) { r.URL.Path = "/else" }, want: Signature},
		"another host":            {change: func(r *http.Request) { r.Host = "else.example" }, want: Signature},
		"AUTH-09 a wrong name":    {sign: func(s *Signer) { s.Algorithm, s.NameAlgorithm = "rsa-v1_5-sha256", true }, want: Algorithm},
		"AUTH-09 an unknown name": {sign: func(s *Signer) { s.Algorithm, s.NameAlgorithm = "ed25519", true }, want: Algorithm},
		"another key":             {sign: func(s *Signer) { s.Key = p384 }, want: Signature},
		"another kind of key":     {sign: func(s *Signer) { s.Key = old }, want: Signature},
		"a signature in ASN.1": {change: func(r *http.Request) {
			sum := sha256.Sum256([]byte("whatever"))
			der, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Signature", "sig1=:"+base64.StdEncoding.EncodeToString(der)+":")
		}, want: Signature},
	} {
		t.Run(name, func(t *testing.T) {
			request := post(t, "https://wfm.example/a", body)
			request.Header.Set("Content-Type", "application/json")
			s := good
			if c.sign != nil {
				c.sign(&s)
			}
			if err := s.Sign(request); err != nil {
				t.Fatal(err)
			}
			if c.change != nil {
				c.change(request)
			}
			arrived := body
			if c.body != "" {
				arrived = c.body
			}
			_, err := Verify(Message{request, "https", []byte(arrived)}, key.Public(), now)
			var refusal *Refusal
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && (!errors.As(err, &refusal) || refusal.Rule != c.want):
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
	t.Run("no body, no digest", func(t *testing.T) {
		request, err := http.NewRequest(http.MethodGet, "https://wfm.example/a", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := good.Sign(request); err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(Message{request, "https", nil}, key.Public(), now); err != nil {
			t.Error(err)
		}
		request.Header.Set("Content-Digest", "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:")
		if _, err := Verify(Message{request, "https", nil}, key.Public(), now); err == nil {
			t.Error("a digest of nothing was accepted")
		}
	})
}

func TestSigningLeavesTheBody(t *testing.T) {
	request := post(t, "https://wfm.example/a", body)
	if err := (Signer{Key: ecdsaKey(t, elliptic.P256()), Created: time.Now()}).Sign(request); err != nil {
		t.Fatal(err)
	}
	if left, err := io.ReadAll(request.Body); err != nil || !bytes.Equal(left, []byte(body)) {
		t.Errorf("%s, %v", left, err)
	}
}

// FuzzVerify sends what no client would: it is refused and nothing else happens.
func FuzzVerify(f *testing.F) {
	f.Add(`sig1=("@method" "@target-uri");created=1700000000;keyid="key"`, "sig1=:AAAA:", "", "")
	f.Add(exampleInput, "sig-b23=:"+exampleSignature+":", "sha-256=:AAAA:", "{}")
	f.Add(`sig1=("@method";sf "@query-param";name="a")`, "sig1=:", `sha-256=?1`, "x")
	f.Add(`sig1=(1 2);created=1.5;expires="";alg=?0`, `sig1="x"`, ",", "x")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, input, signature, digest, body string) {
		request, err := http.NewRequest(http.MethodPost, "https://wfm.example/a", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header = http.Header{"Signature-Input": {input}, "Signature": {signature}}
		if digest != "" {
			request.Header.Set("Content-Digest", digest)
		}
		if v, err := Verify(Message{request, "https", []byte(body)}, key.Public(), time.Unix(1_700_000_000, 0)); err == nil {
			t.Errorf("believed: %+v", v)
		}
	})
}

// A library that others keep understands the same messages, in both directions.
func TestAnIndependentLibraryAgrees(t *testing.T) {
	p256, p384, old := ecdsaKey(t, elliptic.P256()), ecdsaKey(t, elliptic.P384()), rsaKey(t)
	for name, c := range map[string]struct {
		key    crypto.Signer
		sign   func(*httpsign.SignConfig, httpsign.Fields) (*httpsign.Signer, error)
		verify func(*httpsign.VerifyConfig, httpsign.Fields) (*httpsign.Verifier, error)
	}{
		"ecdsa-p256-sha256": {
			p256,
			func(o *httpsign.SignConfig, f httpsign.Fields) (*httpsign.Signer, error) {
				return httpsign.NewP256Signer(*p256, o, f)
			},
			func(o *httpsign.VerifyConfig, f httpsign.Fields) (*httpsign.Verifier, error) {
				return httpsign.NewP256Verifier(p256.PublicKey, o, f)
			},
		},
		"ecdsa-p384-sha384": {
			p384,
			func(o *httpsign.SignConfig, f httpsign.Fields) (*httpsign.Signer, error) {
				return httpsign.NewP384Signer(*p384, o, f)
			},
			func(o *httpsign.VerifyConfig, f httpsign.Fields) (*httpsign.Verifier, error) {
				return httpsign.NewP384Verifier(p384.PublicKey, o, f)
			},
		},
		"rsa-v1_5-sha256": {
			old,
			func(o *httpsign.SignConfig, f httpsign.Fields) (*httpsign.Signer, error) {
				return httpsign.NewRSASigner(*old, o, f)
			},
			func(o *httpsign.VerifyConfig, f httpsign.Fields) (*httpsign.Verifier, error) {
				return httpsign.NewRSAVerifier(old.PublicKey, o, f)
			},
		},
	} {
		for _, components := range [][]string{
			{"@method", "@target-uri", "content-digest"},
			{"@method", "@target-uri", "@authority", "content-digest"},
			{"@method", "@target-uri", "content-digest", "@path", "@query", "@scheme", "@request-target", "content-type"},
		} {
			for _, named := range []bool{false, true} {
				fields := httpsign.Headers(components...)
				theirs, err := c.sign(httpsign.NewSignConfig().SignAlg(named).SignCreated(true).SetKeyID("key"), fields)
				if err != nil {
					t.Fatal(err)
				}
				fresh := func() *http.Request {
					request := post(t, "https://wfm.example:8443/api/v1/clients/1234/x?y=%20z&empty", body)
					request.Header.Set("Content-Type", "application/json")
					return request
				}
				request := fresh()
				sum := sha256.Sum256([]byte(body))
				request.Header.Set("Content-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":")
				input, value, err := httpsign.SignRequest("sig1", *theirs, request)
				if err != nil {
					t.Fatal(err)
				}
				request.Header.Set("Signature-Input", input)
				request.Header.Set("Signature", value)
				v, err := Verify(Message{request, "https", []byte(body)}, c.key.Public(), time.Now())
				if err != nil || v.Algorithm != name {
					t.Errorf("theirs, %s, %q: %+v, %v", name, components, v, err)
				}

				request = fresh()
				ours := Signer{Key: c.key, Components: components, Created: time.Now(), NameAlgorithm: named}
				if err := ours.Sign(request); err != nil {
					t.Fatal(err)
				}
				verifier, err := c.verify(httpsign.NewVerifyConfig(), fields)
				if err != nil {
					t.Fatal(err)
				}
				if err := httpsign.VerifyRequest("sig1", *verifier, request); err != nil {
					t.Errorf("ours, %s, %q: %v", name, components, err)
				}
			}
		}
	}
}
