package wfmsim

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/identity"
)

// FuzzRequest sends what no client would: whatever it is, it is refused by an
// answer of the interface, since nobody has proved who asks.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/api/v1/deployments", "application/json;q=0.1, */*", "")
	f.Add("POST", "/api/v1/deployments/x/status", "", "{}")
	f.Add("PUT", "/api/v1/capabilities/a/b/%2e", ";;;,,", "[")
	f.Add("DELETE", "/api/v1/bundles//sha256:", "q=", "")
	f.Add("GET", "/api/v1/clients/a/deployments", "bytes=0-5", "")
	f.Add("GET", "/api/v1/clients/a/capabilities", "bytes=-5", "")
	f.Add("PUT", "/api/v1/clients/a/capabilities/b/c", "bytes=9-", "{}")
	f.Add("POST", "/api/v1/onboarding", "bytes=1-0", `{"apiVersion":"x","kind":"OnboardingRequest","certificate":"AAAA"}`)
	f.Add("GET", "/api/v1/onboarding/certificate", "bytes=0-1,3-4", "")
	servers := map[Revision]*Server{}
	for _, revision := range Revisions() {
		s, err := New(Options{
			Revision: revision, SVID: tls.Certificate{Certificate: [][]byte{{}}}, Bundle: &identity.TrustBundle{},
			ID: identity.ID{TrustDomain: "fuzz.example", WFM: "wfm"},
		})
		if err != nil {
			f.Fatal(err)
		}
		servers[revision] = s
	}
	f.Fuzz(func(t *testing.T, method, path, accept, body string) {
		request, err := http.NewRequest(method, "https://wfm.example/"+strings.TrimPrefix(path, "/"), strings.NewReader(body))
		if err != nil {
			return // not even a request
		}
		for revision, s := range servers {
			at := s.find(request.URL.EscapedPath())
			for _, arg := range at.args {
				if arg == "" && (revision != RC1 || at.name != EndpointCapabilities) {
					t.Errorf("%s: %s has the segments %q", path, at.name, at.args)
				}
			}
			recorder := httptest.NewRecorder()
			request.Body = io.NopCloser(strings.NewReader(body))
			s.route(recorder, request)
			if recorder.Code < 400 || revision == RC3 && recorder.Code != http.StatusForbidden {
				t.Errorf("%s %s: got %d", revision, path, recorder.Code)
			}
		}
		acceptable([]string{accept}, "application/x")
	})
}
