package identity

import (
	"net/http"
	"testing"

	"github.com/margolite/margolite/test/expect"
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
		r := expect.Value(http.NewRequest(http.MethodGet, test.url, nil))(t)
		if test.host != "" {
			r.Host = test.host
		}
		base, _, err := signatureBase(r, "")
		expect.OK(t, err)
		expect.Contains(t, base, "\n\"@target-uri\": "+test.want+"\n", "what is signed for %s", test.url)
	}
}
