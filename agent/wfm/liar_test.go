package wfm_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
)

// wire is a connection to a client, to write to past HTTP.
type wire struct{ net.Conn }

// say writes, and reports whether the client still reads.
func (w wire) say(text string) bool {
	_, err := io.WriteString(w, text)
	return err == nil
}

// forever repeats a text until the client closes the connection.
func (w wire) forever(text string) {
	many := strings.Repeat(text, 1+(16<<10)/len(text))
	for w.say(many) {
	}
}

// waits until the client has closed the connection.
func (w wire) waits() { _, _ = io.Copy(io.Discard, w) }

// lies answers requests below HTTP, and ends the connection.
func lies(tell func(w wire, r *http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		connection, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer connection.Close()
		tell(wire{connection}, r)
	}
}

// refusedLie fails the test unless the error contains want, is short and can be printed.
func refusedLie(t *testing.T, err error, want string) {
	t.Helper()
	expect.Require(t, err != nil && strings.Contains(err.Error(), want), "the error is %v, want one with %q", err, want)
	text := err.Error()
	if len(text) > 8<<10 || strings.Contains(text, "secret") || strings.ContainsFunc(text, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }) {
		t.Errorf("%d bytes: %q", len(text), text)
	}
}

// A server that misbehaves below HTTP causes an error and nothing else, at little cost in
// memory.
func TestDS18BrokenProtocolIsRefused(t *testing.T) {
	const (
		okay = "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.margo.manifest.v1+json\r\n"
		most = 64 << 20 // bytes allocated for an answer, also by its server
	)
	s := serve(t)
	before := runtime.NumGoroutine()
	for name, lie := range map[string]struct {
		want string
		tell func(wire)
	}{
		"a huge header":                   {"header", func(w wire) { w.say(okay + "X-A: "); w.forever("a") }},
		"headers without end":             {"header", func(w wire) { w.say(okay); w.forever("X-A: b\r\n") }},
		"a status line without end":       {"header", func(w wire) { w.say("HTTP/1.1 200 "); w.forever("OK") }},
		"a header with line noise":        {"malformed", func(w wire) { w.say(okay + "\x1b[2J\x07: \x00\r\n\r\n") }},
		"an ETag with control characters": {"malformed", func(w wire) { w.say(okay + "ETag: \"\x1b[2J\"\r\n\r\n{}") }},
		"100 Continue without end":        {"header", func(w wire) { w.forever("HTTP/1.1 100 Continue\r\n\r\n") }},
		"another protocol": {"101", func(w wire) {
			w.say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n")
			w.forever("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		}},
		"HTTP/2":                       {"silent", func(w wire) { w.say("\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"); w.waits() }},
		"no HTTP":                      {"malformed", func(w wire) { w.say("SSH-2.0-\x1b[31m\r\n") }},
		"no answer":                    {"EOF", func(wire) {}},
		"a header that does not end":   {"silent", func(w wire) { w.say(okay); w.waits() }},
		"chunks of an absurd size":     {"larger than its limit", func(w wire) { w.say(okay + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"); w.forever(" ") }},
		"chunk extensions without end": {"too long", func(w wire) { w.say(okay + "Transfer-Encoding: chunked\r\n\r\n1;"); w.forever("a=b;") }},
		"trailers without end": {"trailer", func(w wire) {
			w.say(okay + "Trailer: X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
			w.forever("X: y\r\n")
		}},
		"two lengths": {"Content-Length", func(w wire) { w.say(okay + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}") }},
		"encodings in two headers": {"Content-Encoding", func(w wire) {
			w.say(okay + "Content-Encoding: gzip\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}")
		}},
		"an error that shows on terminals": {"500", func(w wire) {
			body := `{"title":"\u001b[31m\u202e\u009b2J` + "\u009b" + `","detail":"` + strings.Repeat("\\u0007x", 8000) + `","errors":[{"field":"a\nb","message":"\u001b]0;x\u0007"}]}`
			w.say("HTTP/1.1 500 \x1b[2J\r\nContent-Type: application/problem+json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
		}},
		"a redirect that shows on terminals": {"redirect", func(w wire) {
			w.say("HTTP/1.1 302 Found\r\nLocation: https://user:secret@h.example/\x9b31m" + strings.Repeat("a", 30<<10) + "?token=secret\r\nContent-Length: 0\r\n\r\n")
		}},
		"a redirect to nowhere": {"a redirect to", func(w wire) { w.say("HTTP/1.1 302 Found\r\nLocation: ://secret\r\nContent-Length: 0\r\n\r\n") }},
		"more than was announced": {"", func(w wire) {
			w.say(okay + "Content-Length: 2\r\n\r\n{}" + "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\x1b[2J!")
			w.waits()
		}},
		"an error without an end": {"500", func(w wire) { w.say("HTTP/1.1 500 No\r\nContent-Type: text/plain\r\n\r\n"); w.forever("no ") }},
	} {
		t.Run(name, func(t *testing.T) {
			s.handle(manifestRoute, lies(func(w wire, _ *http.Request) { lie.tell(w) }))
			c := s.client(t, func(o *wfm.Options) {
				if lie.want == "silent" {
					o.Timeout = 300 * time.Millisecond
				}
			})
			var then, now runtime.MemStats
			runtime.ReadMemStats(&then)
			_, err := c.Manifest(t.Context(), "")
			runtime.ReadMemStats(&now)
			refusedLie(t, err, lie.want)
			if took := now.TotalAlloc - then.TotalAlloc; took > most {
				t.Errorf("%d KiB were allocated, at most %d are allowed", took>>10, most>>10)
			}
		})
	}
	expect.Eventually(t, "no goroutines are left", func() bool { return runtime.NumGoroutine() <= before+2 })
}

// An error can be shown on a terminal and logged, whatever the certificate of a server says.
func TestNamesInCertificatesCanBeShown(t *testing.T) {
	web := expect.Value(pki.NewServerAuthority("Web", time.Now()))(t)
	names := []string{"other.example", "\x1b]0;owned\x07\nlevel=ERROR", strings.Repeat("a", 30<<10)}
	s := unstarted()
	s.TLS = &tls.Config{Certificates: []tls.Certificate{expect.Value(web.IssueServer(names))(t).TLS()}}
	s.StartTLS()
	defer s.Close()
	url := strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	c := expect.Value(wfm.New(wfm.Options{URL: url, TLS: expect.Value(identity.ServerTLS(identity.ServerOptions{Root: web.RootPEM()}))(t)}))(t)
	_, err := c.Manifest(t.Context(), "")
	refusedLie(t, err, "certificate is valid for other.example")
}

// What a server says about ranges counts only if the digest confirms it.
func TestDS18LyingRangesAreRefused(t *testing.T) {
	s := serve(t)
	partial := func(contentRange, body string) func(wire, string) {
		return func(w wire, _ string) {
			w.say("HTTP/1.1 206 Partial Content\r\nContent-Range: " + contentRange + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
		}
	}
	for name, lie := range map[string]func(w wire, begun string){
		"another total":      partial("bytes 40-49/1000000000", "0123456789"),
		"an absurd total":    partial("bytes 40-49/9223372036854775807", "0123456789"),
		"a total below":      partial("bytes 40-49/45", "0123456789"),
		"what overlaps":      partial("bytes 10-49/100", strings.Repeat("a", 40)),
		"what leaves a gap":  partial("bytes 80-89/100", "0123456789"),
		"another file":       partial("bytes 40-49/50", "0123456789"),
		"less than it says":  partial("bytes 40-99/*", "a"),
		"nothing at all":     partial("bytes 40-99/100", ""),
		"no range":           partial("", "0123456789"),
		"a range of lines":   partial("lines 40-49/50", "0123456789"),
		"a negative range":   partial("bytes -40-49/50", "0123456789"),
		"more than it says":  partial("bytes 40-41/50", strings.Repeat("a", 1<<20)),
		"several ranges":     partial("bytes 40-49/50, 60-69/70", "0123456789"),
		"one byte at a time": func(w wire, begun string) { partial("bytes "+begun+"-"+begun+"/1000", "a")(w, "") },
		"nothing more": func(w wire, _ string) {
			w.say("HTTP/1.1 416 No\r\nContent-Range: bytes */10\r\nContent-Length: 0\r\n\r\n")
		},
		"the same from the top": func(w wire, _ string) {
			w.say("HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n" + strings.Repeat("a", 40))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(2, 100)
			s.handle(f.bundleRoute(), lies(func(w wire, r *http.Request) {
				_, begun, ranged := strings.Cut(strings.TrimSuffix(r.Header.Get("Range"), "-"), "=")
				if ranged {
					lie(w, begun)
				} else { // it breaks off, and is to go on
					w.say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + strings.Repeat("a", 40))
				}
			}))
			spool := incoming(t, store.Options{})
			_, err := get(t, s.client(t, withSpool(spool), func(o *wfm.Options) { o.Limits.Bundle = 1 << 20 }), f)
			refusedLie(t, err, "cannot get bundle")
			if n := expect.Value(spool.Size(f.manifest.Bundle.Digest))(t); n > 1<<20 {
				t.Errorf("%d bytes stay in the spool", n)
			}
		})
	}
}
