package wfmsim

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// FuzzRequest sends what no client would: whatever it is, it is refused by an
// answer of the interface, since nobody has proved who asks.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/api/v1/deployments", "application/json;q=0.1, */*", "")
	f.Add("POST", "/api/v1/deployments/x/status", "", "{}")
	f.Add("PUT", "/api/v1/capabilities/a/b/%2e", ";;;,,", "[")
	f.Add("DELETE", "/api/v1/bundles//sha256:", "q=", "")
	s := &Server{}
	f.Fuzz(func(t *testing.T, method, path, accept, body string) {
		request, err := http.NewRequest(method, "https://wfm.example/"+strings.TrimPrefix(path, "/"), strings.NewReader(body))
		if err != nil {
			return // not even a request
		}
		e, args := find(request.URL.EscapedPath())
		for _, arg := range args {
			if arg == "" {
				t.Errorf("%s: %s has the segments %q", path, e.name, args)
			}
		}
		acceptable([]string{accept}, "application/x")
		matches([]string{accept}, `"x"`)
		acceptsGzip(&http.Request{Header: http.Header{"Accept-Encoding": {accept}}})
		if _, refusal := s.authorize(request); refusal == nil || refusal.status != http.StatusForbidden {
			t.Errorf("%s: nobody was let in", path)
		} else {
			refusal.answer(httptest.NewRecorder(), request, 0)
		}
	})
}
