package wfm_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
)

func TestReportsArriveAsTheyAre(t *testing.T) {
	d := newTrust(t)
	s := d.serve(t, "one")
	c := client(t, d.device(t), s.URL+"/v1alpha2/margo")
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
		"capabilities": {
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
			if err := test.send([]byte(body)); err != nil {
				t.Errorf("%v; requests %q", err, s.took())
			}
		})
	}
}

func TestReportAnswers(t *testing.T) {
	d := newTrust(t)
	s := d.serve(t, "one")
	c := client(t, d.device(t), s.URL)
	const base = `{"type":"https://docs.margo.org/specification/problem-types#`
	tests := map[string]struct {
		handler http.HandlerFunc
		status  int // 0: success
		kind    margo.ProblemKind
		text    string
		retry   bool
	}{
		"updated":                        {handler: serveProblem(200, "")},
		"created":                        {handler: serveProblem(201, "")},
		"accepted":                       {handler: serveProblem(202, "")},
		"no content":                     {handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }},
		"success with a page":            {handler: serveProblem(200, "<html>"+strings.Repeat("x", 1<<20))},
		"success with a body cut off":    {handler: serveTruncated([]byte("x"))},
		"success that is wrongly packed": {handler: serveEncoded("br", []byte("x"))},
		"malformed": {
			handler: serveProblem(400, base+`invalid-request","title":"Invalid Request","status":400,"detail":"no status"}`),
			status:  400, kind: margo.ProblemInvalidRequest, text: "Invalid Request: no status",
		},
		"wrong": {
			handler: serveProblem(422, base+`semantic-error","title":"Semantic Error","status":422,"errors":[{"field":"status.state","message":"unknown"}]}`),
			status:  422, kind: margo.ProblemSemanticError, text: "status.state: unknown",
		},
		"gateway first": {
			handler: serveProblem(404, base+`gateway-not-found","title":"Gateway not found","status":404}`),
			status:  404, kind: margo.ProblemGatewayNotFound, text: "Gateway not found",
		},
		"retired":           {handler: serveProblem(403, base+`not-authorized","title":"x","status":403}`), status: 403, kind: margo.ProblemNotAuthorized},
		"plain JSON":        {handler: serveProblem(403, `{"error":"Client rejected"}`, "Content-Type", "application/json"), status: 403, text: "Client rejected"},
		"busy":              {handler: serveProblem(429, "", "Retry-After", "1"), status: 429, retry: true},
		"nothing in it":     {handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, status: 500, text: "500 Internal Server Error", retry: true},
		"a foreign type":    {handler: serveProblem(409, `{"type":"https://vendor.example/x","title":"Busy","status":409}`), status: 409, text: "Busy"},
		"a redirect":        {handler: redirect("https://elsewhere.example/"), status: 307, text: "https://elsewhere.example/"},
		"no longer is here": {handler: serveProblem(410, ""), status: 410},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s.handle("POST /api/v1/deployments/x/status", test.handler)
			err := c.PostStatus(t.Context(), "x", []byte("{}"))
			if test.status == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var answer *wfm.Error
			if !errors.As(err, &answer) {
				t.Fatalf("error %v is no answer", err)
			}
			if answer.Status != test.status || answer.Problem.Kind() != test.kind {
				t.Errorf("status %d, kind %q, want %d, %q", answer.Status, answer.Problem.Kind(), test.status, test.kind)
			}
			if !strings.HasPrefix(err.Error(), "cannot post status of deployment x: ") || !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %q does not say %q", err, test.text)
			}
			if retry, _ := wfm.Retry(err); retry != test.retry {
				t.Errorf("Retry = %t, want %t", retry, test.retry)
			}
		})
	}
}

func TestReportsWorkWhileAnAnswerIsAwaited(t *testing.T) {
	d := newTrust(t)
	s := d.serve(t, "one")
	c := client(t, d.device(t), s.URL)
	polling, release := make(chan struct{}), make(chan struct{})
	s.handle(manifestRoute, func(w http.ResponseWriter, r *http.Request) {
		close(polling)
		<-release
		serveManifest(newFleet(1, 1).raw())(w, r)
	})
	s.handle("POST /api/v1/deployments/x/status", serveProblem(200, ""))
	polled := make(chan error, 1)
	go func() {
		_, err := c.Manifest(t.Context(), "")
		polled <- err
	}()
	<-polling
	if err := c.PostStatus(t.Context(), "x", []byte("{}")); err != nil {
		t.Error(err)
	}
	c.CloseIdle() // does not cut off the answer that is still to come
	close(release)
	select {
	case err := <-polled:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the poll did not end")
	}
}
