package agent_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	golog "log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/ociimage"
	"github.com/margolite/margolite/test/pki"
)

// liar is a WFM of its own on a real TLS socket, which breaks the protocol below
// what an HTTP server can be made to do: it writes what it likes.
type liar struct {
	*httptest.Server

	mu        sync.Mutex
	version   uint64
	documents map[string]string // by id
	asked     []*http.Request
	lie       func(w *wire, r *http.Request) bool // false: nothing is wrong with this request
}

// wire is the connection to a client, to write to past HTTP.
type wire struct{ net.Conn }

func newLiar(t *testing.T, authority *pki.Authority, version uint64) *liar {
	t.Helper()
	svid, err := authority.IssueWFM(hostileWFM)
	if err != nil {
		t.Fatal(err)
	}
	l := &liar{version: version}
	l.Server = httptest.NewUnstartedServer(l)
	l.TLS = &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
		Certificates: []tls.Certificate{svid.TLS()}, ClientAuth: tls.RequireAnyClientCert,
	}
	l.Config.ErrorLog = golog.New(io.Discard, "", 0)
	l.StartTLS()
	t.Cleanup(l.Close)
	return l
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	l.mu.Lock()
	l.asked = append(l.asked, r)
	lie := l.lie
	l.mu.Unlock()
	if lie != nil {
		recorder := &lateHijack{w: w}
		if lie(&wire{Conn: recorder}, r) {
			recorder.end()
			return
		}
	}
	l.answer(w, r)
}

// answer is the truth.
func (l *liar) answer(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bundle, err := l.bundle()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	switch {
	case r.Method != http.MethodGet:
		w.WriteHeader(http.StatusCreated)
	case len(parts) == 1 && parts[0] == "deployments":
		m := &margo.StateManifest{
			Version: l.version,
			Bundle:  &margo.Bundle{MediaType: margo.BundleMediaType, Digest: digest.FromBytes(bundle), URL: "/api/v1/bundles/" + digest.FromBytes(bundle).String()},
		}
		for _, id := range []string{first, second} {
			d := digest.FromString(l.documents[id])
			m.Deployments = append(m.Deployments, margo.DeploymentRef{ID: id, Digest: d, URL: "/api/v1/deployments/" + id + "/" + d.String()})
		}
		body, err := m.Marshal()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", margo.ManifestMediaType)
		w.Header().Set("ETag", `"`+digest.FromBytes(body).String()+`"`)
		_, _ = w.Write(body)
	case parts[0] == "bundles":
		_, _ = w.Write(bundle)
	default:
		_, _ = io.WriteString(w, l.documents[parts[1]])
	}
}

func (l *liar) bundle() ([]byte, error) {
	var entries []ociimage.Entry
	for _, id := range []string{first, second} {
		entries = append(entries, ociimage.Entry{Name: id + ".yaml", Data: []byte(l.documents[id])})
	}
	return ociimage.TarGzip(entries)
}

// lateHijack takes the connection over when it is written to.
type lateHijack struct {
	net.Conn

	w  http.ResponseWriter
	rw *bufio.ReadWriter
}

func (h *lateHijack) Write(p []byte) (int, error) {
	if h.Conn == nil {
		var err error
		if h.Conn, h.rw, err = http.NewResponseController(h.w).Hijack(); err != nil {
			return 0, err
		}
	}
	return h.Conn.Write(p)
}

func (h *lateHijack) end() {
	if h.Conn == nil {
		_, _ = h.Write(nil)
	}
	if h.Conn != nil {
		_ = h.Conn.Close()
	}
}

// say writes, until the client has enough.
func (w *wire) say(text string) bool {
	_, err := io.WriteString(w, text)
	return err == nil
}

// forever says the same until the client has enough.
func (w *wire) forever(text string) {
	many := strings.Repeat(text, 1+(16<<10)/len(text))
	for w.say(many) {
	}
}

// waits until the client has gone.
func (w *wire) waits() { _, _ = io.Copy(io.Discard, w) }

const okay = "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.margo.manifest.v1+json\r\n"

// lies are what a server can do to a client that asks for a manifest or a document.
func lies() []struct {
	name string
	want string
	tell func(*wire)
} {
	return []struct {
		name string
		want string
		tell func(*wire)
	}{
		{"a huge header", "header", func(w *wire) { w.say(okay + "X-A: "); w.forever("a") }},
		{"headers without end", "header", func(w *wire) { w.say(okay); w.forever("X-A: b\r\n") }},
		{"a status line without end", "header", func(w *wire) { w.say("HTTP/1.1 200 "); w.forever("OK") }},
		{"a header with line noise", "malformed", func(w *wire) { w.say(okay + "\x1b[2J\x07: \x00\r\n\r\n") }},
		{"an ETag with control characters", "malformed", func(w *wire) { w.say(okay + "ETag: \"\x1b[2J\"\r\n\r\n{}") }},
		{"100 Continue without end", "header", func(w *wire) { w.forever("HTTP/1.1 100 Continue\r\n\r\n") }},
		{"another protocol", "101", func(w *wire) {
			w.say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n")
			w.forever("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		}},
		{"HTTP/2", "silent", func(w *wire) { w.say("\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"); w.waits() }},
		{"HTTP/9", "", func(w *wire) { w.say("HTTP/9.9 200 OK\r\n\r\n") }},
		{"no HTTP", "malformed", func(w *wire) { w.say("SSH-2.0-\x1b[31m\r\n") }},
		{"no answer", "EOF", func(w *wire) {}},
		{"half a header", "malformed", func(w *wire) { w.say(okay + "X-") }},
		{"a header that does not end", "silent", func(w *wire) { w.say(okay); w.waits() }},
		{"chunks of an absurd size", "larger than its limit", func(w *wire) { w.say(okay + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"); w.forever(" ") }},
		{"a chunk that is too large for a number", "chunk", func(w *wire) { w.say(okay + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffffff\r\n") }},
		{"extensions of chunks without end", "too long", func(w *wire) { w.say(okay + "Transfer-Encoding: chunked\r\n\r\n1;"); w.forever("a=b;") }},
		{"trailers without end", "trailer", func(w *wire) {
			w.say(okay + "Trailer: X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
			w.forever("X: y\r\n")
		}},
		{"two lengths", "Content-Length", func(w *wire) { w.say(okay + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}") }},
		{"a negative length", "Content-Length", func(w *wire) { w.say(okay + "Content-Length: -1\r\n\r\n{}") }},
		{"an unknown transfer encoding", "transfer encoding", func(w *wire) { w.say(okay + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n") }},
		{"encodings in two headers", "Content-Encoding", func(w *wire) {
			w.say(okay + "Content-Encoding: gzip\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}")
		}},
		{"an error that shows on terminals", "500", func(w *wire) {
			body := `{"title":"\u001b[31m\u202e\u009b2J` + "\u009b" + `","detail":"` + strings.Repeat("\\u0007x", 8000) + `","errors":[{"field":"a\nb","message":"\u001b]0;x\u0007"}]}`
			w.say("HTTP/1.1 500 \x1b[2J\r\nContent-Type: application/problem+json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
		}},
		{"a redirect that shows on terminals", "redirect", func(w *wire) {
			w.say("HTTP/1.1 302 Found\r\nLocation: https://user:secret@h.example/\x9b31m" + strings.Repeat("a", 30<<10) + "?token=secret\r\nContent-Length: 0\r\n\r\n")
		}},
		{"more than was announced", "", func(w *wire) {
			w.say(okay + "Content-Length: 2\r\n\r\n{}" + "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\x1b[2J!")
			w.waits()
		}},
		{"an error without an end", "500", func(w *wire) { w.say("HTTP/1.1 500 No\r\nContent-Type: text/plain\r\n\r\n"); w.forever("no ") }},
	}
}

// Below HTTP, too, a server can do what it likes, and nothing comes of it.
func TestDS18BrokenProtocolChangesNothing(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{"manifest", "documents"} {
		t.Run(endpoint, func(t *testing.T) {
			t.Parallel()
			h := newHostile(t, brief)
			l := newLiar(t, h.authority, 1000)
			h.device.connect(l.URL)
			for _, lie := range lies() {
				t.Run(lie.name, func(t *testing.T) {
					h.t, h.device.t = t, t
					h.tells(l, func(w *wire, r *http.Request) bool {
						if manifest := strings.HasSuffix(r.URL.Path, "/deployments"); r.Method != http.MethodGet || manifest != (endpoint == "manifest") {
							return false
						}
						lie.tell(w)
						return true
					})
					want := lie.want
					if endpoint == "documents" && want == "Content-Encoding" {
						want = "does not match its digest" // of the bytes as they came
					}
					v := h.refuses(want)
					if strings.Contains(v.Err+v.Log, "secret") {
						t.Errorf("a secret is shown: %s %s", v.Err, v.Log)
					}
					h.believes(l)
				})
			}
			h.t, h.device.t = t, t
			h.leavesNothing()
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, r := range l.asked {
				if len(r.Header["Cookie"]) > 0 {
					t.Errorf("%s %s has a cookie", r.Method, r.URL)
				}
			}
			h.device.stop()
			if h.device.stderr.Len() > 0 {
				t.Errorf("the device says %.500q", h.device.stderr.String())
			}
		})
	}
}

// tells lets the liar publish the next revision, and lie about it.
func (h *hostile) tells(l *liar, lie func(*wire, *http.Request) bool) {
	h.revision++
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version++
	l.documents = map[string]string{}
	for _, id := range []string{first, second} {
		l.documents[id] = document(id, fmt.Sprintf("%d.0.0", h.revision))
	}
	l.lie = lie
}

// believes lets the liar tell the truth.
func (h *hostile) believes(l *liar) {
	h.t.Helper()
	l.mu.Lock()
	l.lie = nil
	l.mu.Unlock()
	h.settles()
}

// What is said about a range is believed only as far as the digest bears it out.
func TestDS18LyingRangesChangeNothing(t *testing.T) {
	t.Parallel()
	h := newHostile(t, brief)
	l := newLiar(t, h.authority, 1000)
	h.device.connect(l.URL)
	partial := func(contentRange, body string) func(*wire, string) {
		return func(w *wire, _ string) {
			w.say("HTTP/1.1 206 Partial Content\r\nContent-Range: " + contentRange + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
		}
	}
	for name, lie := range map[string]func(w *wire, begun string){
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
		"one byte at a time": func(w *wire, begun string) { partial("bytes "+begun+"-"+begun+"/1000", "a")(w, "") },
		"nothing more": func(w *wire, _ string) {
			w.say("HTTP/1.1 416 No\r\nContent-Range: bytes */10\r\nContent-Length: 0\r\n\r\n")
		},
		"the same from the top": func(w *wire, _ string) {
			w.say("HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n" + strings.Repeat("a", 40))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h.t, h.device.t = t, t
			h.tells(l, func(w *wire, r *http.Request) bool {
				_, begun, ranged := strings.Cut(strings.TrimSuffix(r.Header.Get("Range"), "-"), "=")
				switch {
				case r.Method != http.MethodGet || strings.HasSuffix(r.URL.Path, "/deployments"):
					return false
				case !strings.Contains(r.URL.Path, "/bundles/"):
					w.say("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
				case ranged:
					lie(w, begun)
				default: // it breaks off, and is to go on
					w.say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + strings.Repeat("a", 40))
				}
				return true
			})
			h.refuses("cannot get bundle")
			h.believes(l)
		})
	}
}
