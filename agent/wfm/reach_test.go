package wfm_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"
	"testing"

	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/expect"
)

// Reach sends no request, and yet shows whether the WFM accepts the device's certificate.
func TestReachSendsNoRequest(t *testing.T) {
	s, c := pair(t)
	expect.OK(t, c.Reach(t.Context()))
	unknown := s.client(t, func(o *wfm.Options) {
		o.TLS = &tls.Config{InsecureSkipVerify: true} // shows no certificate
	})
	expect.ErrorWith(t, unknown.Reach(t.Context()), "cannot reach", "a device without a certificate")
	expect.Equal(t, len(s.took()), 0, "requests")
	s.Close()
	err := c.Reach(t.Context())
	expect.ErrorWith(t, err, "cannot reach", "a WFM that is gone")
	expect.Equal(t, retries(err), true, "to be repeated")
}

// ID-11: also with a server that offers HTTP/2.
func TestID11HTTP11IsSpoken(t *testing.T) {
	s := serve(t)
	spoken := make(chan string, 1)
	s.handle("GET /api/v1/deployments", func(_ http.ResponseWriter, r *http.Request) { spoken <- r.Proto })
	if _, err := s.client(t).Manifest(t.Context(), ""); !errors.Is(err, wfm.ErrContentType) {
		t.Fatal(err)
	}
	expect.Equal(t, <-spoken, "HTTP/1.1", "the request was")
}

// ID-11: port 443, unless the URL says otherwise.
func TestID11ThePortIs443(t *testing.T) {
	d := newTrust(t)
	for url, want := range map[string]string{
		"https://wfm.example": "wfm.example:443", "https://wfm.example:443/a": "wfm.example:443", "https://wfm.example:8443": "wfm.example:8443",
	} {
		var dialled []string
		c := client(t, d.device(t), url, func(o *wfm.Options) {
			o.Dial = func(_ context.Context, _, address string) (net.Conn, error) {
				dialled = append(dialled, address)
				return nil, errors.New("connection refused")
			}
		})
		_, err := c.Manifest(t.Context(), "")
		if reachErr := c.Reach(t.Context()); err == nil || reachErr == nil || !slices.Equal(dialled, []string{want, want}) {
			t.Errorf("%s: dialled %q, want %s twice", url, dialled, want)
		}
	}
}
