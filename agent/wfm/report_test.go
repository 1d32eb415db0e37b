package wfm_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/expect"
)

func TestReportsArriveAsTheyAre(t *testing.T) {
	s := serve(t)
	c := client(t, s.trust.device(t), s.URL+"/v1alpha2/margo")
	tests := map[string]struct {
		send  func(body []byte) error
		route string
	}{
		"status": {
			func(b []byte) error {
				return c.PostStatus(t.Context(), "AD9b614e-8912-45f4-a523-372358765def", b)
			},
			"POST /v1alpha2/margo/api/v1/deployments/AD9b614e-8912-45f4-a523-372358765def/status",
		},
		"CAP-07 capabilities, under the id": {
			func(b []byte) error { return c.PutCapabilities(t.Context(), "gateway1/path~1/device_A.x", b) },
			"PUT /v1alpha2/margo/api/v1/capabilities/gateway1/path~1/device_A.x",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			body := `{"hello": "world"}`
			s.handle(test.route, func(w http.ResponseWriter, r *http.Request) {
				sent, err := io.ReadAll(r.Body)
				if err != nil || string(sent) != body || r.Header.Get("Content-Type") != "application/json" {
					t.Errorf("the WFM got %q (%v) as %q", sent, err, r.Header.Get("Content-Type"))
				}
				w.WriteHeader(http.StatusCreated)
			})
			expect.Error(t, test.send([]byte(body)), nil, "requests %q", s.took())
		})
	}
}

// A report that a portal or a proxy answers with a page of its own has not reached the WFM.
func TestReportAnswers(t *testing.T) {
	s, c := pair(t)
	const portal = "<!doctype html>\n<html><body><h1>Log in to use this network</h1></body></html>\n"
	page := func(status int, body string) http.HandlerFunc {
		return serveProblem(status, body, "Content-Type", "text/html; charset=utf-8")
	}
	const base = `{"type":"https://docs.margo.org/specification/problem-types#`
	tests := map[string]struct {
		handler http.HandlerFunc
		status  int // 0: success, or a page of a portal
		kind    margo.ProblemKind
		text    string
		retry   bool
		page    bool
	}{
		"a portal": {handler: page(200, portal), page: true},
		"a packed portal": {page: true, handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/HTML")
			serveEncoded("gzip", zip([]byte(portal)))(w, r)
		}},
		"an endless portal":  {handler: page(200, portal+strings.Repeat(" ", 1<<20)), page: true},
		"a portal as a body": {handler: page(201, "\n\n"+portal), page: true},

		"updated":                        {handler: serveProblem(200, "")},
		"created":                        {handler: serveProblem(201, "")},
		"accepted":                       {handler: serveProblem(202, "")},
		"no content":                     {handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }},
		"success with a page":            {handler: serveProblem(200, "<html>"+strings.Repeat("x", 1<<20))},
		"success with a body cut off":    {handler: serveTruncated([]byte("x"))},
		"success that is wrongly packed": {handler: serveEncoded("br", []byte("x"))},
		"success that is called a page":  {handler: page(200, "OK")},
		"wrong": {
			handler: serveProblem(422, base+`semantic-error","title":"Semantic Error","status":422,"errors":[{"field":"status.state","message":"unknown"}]}`),
			status:  422, kind: margo.ProblemSemanticError, text: "status.state: unknown",
		},
		"nothing in it":        {handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, status: 500, text: "500 Internal Server Error", retry: true},
		"a proxy's page":       {handler: page(400, "<html><h1>400 Bad Request</h1></html>"), status: 400, page: true},
		"a text called a page": {handler: page(400, "no such state"), status: 400},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s.handle("POST /api/v1/deployments/x/status", test.handler)
			err := c.PostStatus(t.Context(), "x", []byte("{}"))
			switch {
			case test.status == 0 && test.page:
				expect.ErrorWith(t, err, "captive portal", "error")
				expect.Equal(t, retries(err), true, "to be repeated")
				return
			case test.status == 0:
				expect.OK(t, err)
				return
			}
			var answer *wfm.Error
			expect.Require(t, errors.As(err, &answer), "error %v is no answer", err)
			expect.Equal(t, answer.Status, test.status, "status")
			expect.Equal(t, answer.Problem.Kind(), test.kind, "kind")
			if !strings.HasPrefix(err.Error(), "cannot post status of deployment x: ") || !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %q does not say %q", err, test.text)
			}
			expect.Equal(t, retries(err), test.retry, "to be repeated")
			expect.Equal(t, answer.Page, test.page, "a page")
		})
	}
}

// Types are names: nothing is fetched from there, however much they look like
// addresses, and neither from where an instance or a redirect leads.
func TestERR03TypesOfProblemsAreNeverFetched(t *testing.T) {
	s, c := pair(t)
	elsewhere := s.trust.bystander(t)
	for _, status := range []int{400, 403, 404, 503} {
		body := fmt.Sprintf(`{"type":"%s/problems#a","instance":"%s/b","title":"x","status":%d}`, elsewhere, s.URL, status)
		s.handle("POST /api/v1/deployments/x/status", serveProblem(status, body, "Link", "<"+elsewhere+"/c>; rel=type", "Location", elsewhere))
		var answer *wfm.Error
		if err := c.PostStatus(t.Context(), "x", []byte("{}")); !errors.As(err, &answer) || answer.Problem.Kind() != margo.ProblemOther {
			t.Errorf("%d: %v", status, err)
		}
		expect.Equal(t, len(s.took()), 1, "%d: requests", status)
	}
}
