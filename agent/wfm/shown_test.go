package wfm_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode"

	golog "log"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/pki"
)

// An error can be shown on a terminal and logged, whatever a server sends: also
// one that nobody believes yet, in its certificate.
func TestErrorsCanBeShown(t *testing.T) {
	const escape = "\x1b]0;owned\x07\nlevel=ERROR"
	web := must(pki.NewServerAuthority("Web", time.Now()))
	for name, c := range map[string]struct {
		certificate tls.Certificate
		answer      string
		want, never string
	}{
		"a certificate for names that a terminal obeys": {
			certificate: must(web.IssueServer([]string{"other.example"}, pki.DNSNames(escape, strings.Repeat("a", 30<<10)))).TLS(),
			want:        "certificate is valid for other.example",
		},
		"a header that is none": {answer: "HTTP/1.1 200 OK\r\n" + strings.Repeat(escape, 1000) + "\r\n\r\n", want: "malformed MIME header"},
		"a redirect with secrets": {
			answer: "HTTP/1.1 302 Found\r\nLocation: https://user:secret@sso.example/login?code=secret#secret\r\nContent-Length: 0\r\n\r\n",
			want:   `"https://sso.example/login"`, never: "secret",
		},
		"a redirect to nowhere": {answer: "HTTP/1.1 302 Found\r\nLocation: ://secret\r\nContent-Length: 0\r\n\r\n", want: "a redirect to", never: "secret"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				connection, _ := must2(http.NewResponseController(w).Hijack())
				_, _ = io.WriteString(connection, c.answer)
				_ = connection.Close()
			}))
			server.Config.ErrorLog = golog.New(io.Discard, "", 0)
			if c.certificate.Certificate == nil {
				c.certificate = must(web.IssueServer([]string{"localhost"})).TLS()
			}
			server.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{c.certificate}}
			server.StartTLS()
			defer server.Close()
			config := must(identity.ServerTLS(identity.ServerOptions{Root: web.RootPEM()}))
			client := must(wfm.New(wfm.Options{URL: strings.Replace(server.URL, "127.0.0.1", "localhost", 1), TLS: config}))
			defer client.CloseIdle()
			_, err := client.Manifest(t.Context(), "")
			if err == nil || !strings.Contains(err.Error(), c.want) || c.never != "" && strings.Contains(err.Error(), c.never) {
				t.Fatalf("%v", err)
			}
			if text := err.Error(); len(text) > 1<<10 || strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) }) {
				t.Errorf("%d bytes: %q", len(text), text)
			}
		})
	}
}

func must2[A, B any](a A, b B, err error) (A, B) {
	if err != nil {
		panic(err)
	}
	return a, b
}
