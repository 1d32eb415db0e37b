package identity

import (
	"bufio"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Keys of RFC 9421, appendix B.1.
const (
	keyRSAPSS = `-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAr4tmm3r20Wd/PbqvP1s2
+QEtvpuRaV8Yq40gjUR8y2Rjxa6dpG2GXHbPfvMs8ct+Lh1GH45x28Rw3Ry53mm+
oAXjyQ86OnDkZ5N8lYbggD4O3w6M6pAvLkhk95AndTrifbIFPNU8PPMO7OyrFAHq
gDsznjPFmTOtCEcN2Z1FpWgchwuYLPL+Wokqltd11nqqzi+bJ9cvSKADYdUAAN5W
Utzdpiy6LbTgSxP7ociU4Tn0g5I6aDZJ7A8Lzo0KSyZYoA485mqcO0GVAdVw9lq4
aOT9v6d+nb4bnNkQVklLQ3fVAvJm+xdDOp9LCNCN48V2pnDOkFV6+U9nV5oyc6XI
2wIDAQAB
-----END PUBLIC KEY-----
`
	keyP256 = `-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIFKbhfNZfpDsW43+0+JjUr9K+bTeuxopu653+hBaXGA7oAoGCCqGSM49
AwEHoUQDQgAEqIVYZVLCrPZHGHjP17CTW0/+D9Lfw0EkjqF7xB4FivAxzic30tMM
4GF+hR6Dxh71Z50VGGdldkkDXZCnTNnoXQ==
-----END EC PRIVATE KEY-----
`
	keyEd25519 = `-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF
-----END PRIVATE KEY-----
`
	keyShared = "uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ=="
)

const testRequest = `POST /foo?param=Value&Pet=dog HTTP/1.1
Host: example.com
Date: Tue, 20 Apr 2021 02:07:55 GMT
Content-Type: application/json
Content-Digest: sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:
Content-Length: 18

{"hello": "world"}`

// clientCert is the field Client-Cert of appendix B.3.
const clientCert = ":MIIBqDCCAU6gAwIBAgIBBzAKBggqhkjOPQQDAjA6MRswGQYDVQQKDBJMZXQncyBBdXRoZW50aWNhdGUxGzAZBgNVBAMMEkxBIEludGVy" +
	"bWVkaWF0ZSBDQTAeFw0yMDAxMTQyMjU1MzNaFw0yMTAxMjMyMjU1MzNaMA0xCzAJBgNVBAMMAkJDMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE8YnX" +
	"XfaUgmnMtOXU/IncWalRhebrXmckC8vdgJ1p5Be5F/3YC8OthxM4+k1M6aEAEFcGzkJiNy6J84y7uzo9M6NyMHAwCQYDVR0TBAIwADAfBgNVHSMEGDAW" +
	"gBRm3WjLa38lbEYCuiCPct0ZaSED2DAOBgNVHQ8BAf8EBAMCBsAwEwYDVR0lBAwwCgYIKwYBBQUHAwIwHQYDVR0RAQH/BBMwEYEPYmRjQGV4YW1wbGUu" +
	"Y29tMAoGCCqGSM49BAMCA0gAMEUCIBHda/r1vaL6G3VliL4/Di6YK0Q6bMjeSkC3dFCOOB8TAiEAx/kHSB4urmiZ0NX5r5XarmPk0wmuydBVoU4hBVZ1yhk=:"

func parse(t testing.TB, text string) *http.Request {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.ReplaceAll(text, "\n", "\r\n"))))
	if err != nil {
		t.Fatal(err)
	}
	r.URL.Scheme, r.URL.Host = "https", r.Host
	return r
}

func pemBytes(t testing.TB, text string) []byte {
	t.Helper()
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		t.Fatal("no PEM")
	}
	return block.Bytes
}

func key[T any](t testing.TB, parse func([]byte) (T, error), text string) T {
	t.Helper()
	k, err := parse(pemBytes(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Every request of RFC 9421's appendix B whose components and parameters a
// Signer can produce. The others are B.2.1 and B.2.2, for their nonce and tag,
// and B.2.4, which is a response.
func TestAUTH07SignatureBaseIsThatOfRFC9421(t *testing.T) {
	edKey := key(t, x509.ParsePKCS8PrivateKey, keyEd25519).(ed25519.PrivateKey)
	ed := func(base, want []byte) bool { return string(ed25519.Sign(edKey, base)) == string(want) }
	tests := map[string]struct {
		request, base, signature string
		verify                   func(base, signature []byte) bool
	}{
		"B.2.3, RSA-PSS over many components": {
			request: testRequest,
			base: `"date": Tue, 20 Apr 2021 02:07:55 GMT
"@method": POST
"@path": /foo
"@query": ?param=Value&Pet=dog
"@authority": example.com
"content-type": application/json
"content-digest": sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:
"content-length": 18
"@signature-params": ("date" "@method" "@path" "@query" "@authority" "content-type" "content-digest" "content-length");created=1618884473;keyid="test-key-rsa-pss"`,
			signature: "bbN8oArOxYoyylQQUU6QYwrTuaxLwjAC9fbY2F6SVWvh0yBiMIRGOnMYwZ/5MR6fb0Kh1rIRASVxFkeGt683+qRpRRU5p2voTp768ZrCUb38K0fUxN0O0iC59DzYx8DFll5GmydPxSmme9v6ULbMFkl+V5B1TP/yPViV7KsLNmvKiLJH1pFkh/aYA2HXXZzNBXmIkoQoLd7YfW91kE9o/CCoC1xMy7JA1ipwvKvfrs65ldmlu9bpG6A9BmzhuzF8Eim5f8ui9eH8LZH896+QIF61ka39VBrohr9iyMUJpvRX2Zbhl5ZJzSRxpJyoEZAFL2FUo5fTIztsDZKEgM4cUA==",
			verify: func(base, signature []byte) bool {
				sum := sha512.Sum512(base)
				public := key(t, x509.ParsePKIXPublicKey, keyRSAPSS).(*rsa.PublicKey)
				return rsa.VerifyPSS(public, crypto.SHA512, sum[:], signature, &rsa.PSSOptions{SaltLength: 64}) == nil
			},
		},
		"B.2.5, HMAC": {
			request: testRequest,
			base: `"date": Tue, 20 Apr 2021 02:07:55 GMT
"@authority": example.com
"content-type": application/json
"@signature-params": ("date" "@authority" "content-type");created=1618884473;keyid="test-shared-secret"`,
			signature: "pxcQw6G3AjtMBQjwo8XzkZf/bws5LelbaMk5rGIGtE8=",
			verify: func(base, signature []byte) bool {
				secret, err := base64.StdEncoding.DecodeString(keyShared)
				if err != nil {
					t.Fatal(err)
				}
				h := hmac.New(sha256.New, secret)
				h.Write(base)
				return hmac.Equal(h.Sum(nil), signature)
			},
		},
		"B.2.6, Ed25519": {
			request: testRequest,
			base: `"date": Tue, 20 Apr 2021 02:07:55 GMT
"@method": POST
"@path": /foo
"@authority": example.com
"content-type": application/json
"content-length": 18
"@signature-params": ("date" "@method" "@path" "@authority" "content-type" "content-length");created=1618884473;keyid="test-key-ed25519"`,
			signature: "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==",
			verify:    ed,
		},
		"B.3, ECDSA P-256": {
			request: "POST /foo?param=Value&Pet=dog HTTP/1.1\nHost: service.internal.example\nDate: Tue, 20 Apr 2021 02:07:55 GMT\n" +
				"Content-Type: application/json\nContent-Length: 18\nClient-Cert: " + clientCert + "\n\n" + `{"hello": "world"}`,
			base: `"@path": /foo
"@query": ?param=Value&Pet=dog
"@method": POST
"@authority": service.internal.example
"client-cert": ` + clientCert + `
"@signature-params": ("@path" "@query" "@method" "@authority" "client-cert");created=1618884473;keyid="test-key-ecc-p256"`,
			signature: "xVMHVpawaAC/0SbHrKRs9i8I3eOs5RtTMGCWXm/9nvZzoHsIg6Mce9315T6xoklyy0yzhD9ah4JHRwMLOgmizw==",
			verify: func(base, signature []byte) bool {
				sum := sha256.Sum256(base)
				public := &key(t, x509.ParseECPrivateKey, keyP256).PublicKey
				return ecdsa.Verify(public, sum[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:]))
			},
		},
		"B.4, a field of two lines": {
			request: "GET /demo?name1=Value1&Name2=value2 HTTP/1.1\nHost: example.org\nDate: Fri, 15 Jul 2022 14:24:55 GMT\nAccept: application/json\nAccept: */*\n\n",
			base: `"@method": GET
"@path": /demo
"@authority": example.org
"accept": application/json, */*
"@signature-params": ("@method" "@path" "@authority" "accept");created=1618884473;keyid="test-key-ed25519"`,
			signature: "ZT1kooQsEHpZ0I1IjCqtQppOmIqlJPeo7DHR3SoMn0s5JZ1eRGS0A+vyYP9t/LXlh5QMFFQ6cpLt2m0pmj3NDA==",
			verify:    ed,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			input := test.base[strings.LastIndex(test.base, "\n")+len("\n\"@signature-params\": "):]
			list, parameters, _ := strings.Cut(strings.TrimPrefix(input, "("), ")")
			components, err := coverable(strings.Split(strings.ReplaceAll(list, `"`, ""), " "))
			if err != nil {
				t.Fatal(err)
			}
			base, gotInput, err := signatureBase(parse(t, test.request), components, parameters)
			if err != nil {
				t.Fatal(err)
			}
			if base != test.base || gotInput != input {
				t.Errorf("got\n%s\n%s\nwant\n%s\n%s", base, gotInput, test.base, input)
			}
			signature, err := base64.StdEncoding.DecodeString(test.signature)
			if err != nil {
				t.Fatal(err)
			}
			if !test.verify([]byte(base), signature) {
				t.Error("the published signature is not one of this base")
			}
		})
	}
}

// The parameters come out of NewSigner as the vectors have them.
func TestAUTH08ParametersAreWrittenAsInRFC9421(t *testing.T) {
	at := func() time.Time { return time.Unix(1618884473, 0) }
	s, err := NewSigner(key(t, x509.ParseECPrivateKey, keyP256), SignatureOptions{
		KeyID: "test-key-ecc-p256", Components: []string{"@path", "@query", "@method", "@authority", "Client-Cert"},
	}, at)
	if err != nil {
		t.Fatal(err)
	}
	r := parse(t, testRequest)
	r.Header.Set("Client-Cert", clientCert)
	if err := s.Sign(r, nil); err != nil {
		t.Fatal(err)
	}
	const want = `sig1=("@path" "@query" "@method" "@authority" "client-cert");created=1618884473;keyid="test-key-ecc-p256"`
	if got := r.Header.Get("Signature-Input"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestComponentsOfOddURLs(t *testing.T) {
	tests := map[string]struct {
		url, host string
		want      map[string]string
	}{
		"no path": {
			url:  "https://Example.COM",
			want: map[string]string{"@path": "/", "@query": "?", "@authority": "example.com", "@request-target": "/", "@target-uri": "https://Example.COM/", "@scheme": "https"},
		},
		"the standard port": {
			url:  "https://example.com:443/a?",
			want: map[string]string{"@path": "/a", "@query": "?", "@authority": "example.com", "@request-target": "/a?", "@target-uri": "https://example.com:443/a?"},
		},
		"the port of another scheme": {
			url:  "https://example.com:80/",
			want: map[string]string{"@authority": "example.com:80"},
		},
		"another port": {
			url:  "https://example.com:8443/a%2Fb/%7Ec?x=%20&y=+",
			want: map[string]string{"@path": "/a%2Fb/%7Ec", "@query": "?x=%20&y=+", "@authority": "example.com:8443", "@target-uri": "https://example.com:8443/a%2Fb/%7Ec?x=%20&y=+"},
		},
		"an address": {
			url:  "https://[2001:DB8::443]/",
			want: map[string]string{"@authority": "[2001:db8::443]", "@target-uri": "https://[2001:DB8::443]/"},
		},
		"an address with a zone": {
			url:  "https://[fe80::1%25eth0]:8443/",
			want: map[string]string{"@authority": "[fe80::1]:8443", "@target-uri": "https://[fe80::1]:8443/"},
		},
		"another host": {
			url: "https://192.0.2.1/", host: "wfm.example",
			want: map[string]string{"@authority": "wfm.example", "@target-uri": "https://wfm.example/"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequest(http.MethodGet, test.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			if test.host != "" {
				r.Host = test.host
			}
			for component, want := range test.want {
				if got, present, err := componentValue(r, component); got != want || !present || err != nil {
					t.Errorf("%s is %q (%t, %v), want %q", component, got, present, err, want)
				}
			}
		})
	}
}

func TestRawECDSA(t *testing.T) {
	for name, der := range map[string]string{
		"nothing":       "",
		"no sequence":   "\x02\x01\x01",
		"a zero":        "\x30\x06\x02\x01\x00\x02\x01\x01",
		"a negative":    "\x30\x06\x02\x01\xff\x02\x01\x01",
		"more behind":   "\x30\x06\x02\x01\x01\x02\x01\x01\x00",
		"one too large": "\x30\x08\x02\x03\x01\x00\x00\x02\x01\x01",
	} {
		if raw, err := rawECDSA([]byte(der), 2); err == nil {
			t.Errorf("%s: got %x", name, raw)
		}
	}
	// Short numbers are filled up from the left.
	if raw, err := rawECDSA([]byte("\x30\x06\x02\x01\x01\x02\x01\x02"), 2); err != nil || string(raw) != "\x00\x01\x00\x02" {
		t.Errorf("got %x, %v", raw, err)
	}
}
