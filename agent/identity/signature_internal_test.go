package identity

import (
	"net/http"
	"strings"
	"testing"
)

// The URL that is signed is the one that arrives.
func TestTargetsOfOddURLs(t *testing.T) {
	for _, test := range []struct{ url, host, want string }{
		{"https://Example.COM", "", "https://Example.COM/"},
		{"https://example.com:443/a?", "", "https://example.com:443/a?"},
		{"https://example.com:8443/a%2Fb/%7Ec?x=%20&y=+", "", "https://example.com:8443/a%2Fb/%7Ec?x=%20&y=+"},
		{"https://[2001:DB8::443]/", "", "https://[2001:DB8::443]/"},
		{"https://[fe80::1%25eth0]:8443/", "", "https://[fe80::1]:8443/"},
		{"https://192.0.2.1/", "wfm.example", "https://wfm.example/"},
	} {
		r, err := http.NewRequest(http.MethodGet, test.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if test.host != "" {
			r.Host = test.host
		}
		if base, _, err := signatureBase(r, ""); !strings.Contains(base, "\n\"@target-uri\": "+test.want+"\n") || err != nil {
			t.Errorf("%s is signed as %q, %v, want %s", test.url, base, err, test.want)
		}
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
