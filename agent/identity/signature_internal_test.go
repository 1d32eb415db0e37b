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
