package wfm_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
)

// incoming is a spool on disk.
func incoming(t testing.TB, o store.Options) *store.Incoming {
	t.Helper()
	s := expect.Value(store.Open(filepath.Join(t.TempDir(), "margolite.db"), o))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s.Incoming()
}

func withSpool(s wfm.Spool) func(*wfm.Options) { return func(o *wfm.Options) { o.Spool = s } }

// largeFleet has a bundle of some hundred KB that does not compress.
func largeFleet() *fleet {
	noise := rand.New(rand.NewPCG(1, 2))
	return fleetOf(4, func(string) []byte {
		document := make([]byte, 100<<10)
		for i := range document {
			document[i] = byte(noise.Uint32())
		}
		return document
	})
}

// ranges is a server of one artifact that understands ranges, and spoils its
// answers as a test tells it to: cut[i] is where the i-th one breaks off.
type ranges struct {
	content []byte
	etag    string // "": its digest; "-": none
	cut     []int
	plain   bool // it does not understand ranges
	piece   int  // sends no more at a time

	asked []string // Range and If-Range of the requests
}

func (s *ranges) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if encoding := r.Header.Get("Accept-Encoding"); encoding != "identity" {
		s.asked = append(s.asked, "Accept-Encoding: "+encoding)
	}
	s.asked = append(s.asked, strings.TrimSpace(r.Header.Get("Range")+" "+r.Header.Get("If-Range")))
	etag := s.etag
	if etag == "" {
		etag = `"` + digest.FromBytes(s.content).String() + `"`
	}
	if etag != "-" {
		w.Header().Set("ETag", etag)
	}
	if s.plain {
		r.Header.Del("Range")
	}
	var first int
	if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &first); n == 1 && s.piece > 0 && first+s.piece < len(s.content) {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, first+s.piece-1))
	}
	var out http.ResponseWriter = w
	if n := len(s.asked) - 1; n < len(s.cut) {
		out = &cutWriter{w, s.cut[n]}
	}
	http.ServeContent(out, r, "", time.Time{}, bytes.NewReader(s.content))
}

// cutWriter sends no more than it should, though more was announced.
type cutWriter struct {
	http.ResponseWriter

	left int
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		p = p[:w.left]
	}
	w.left -= len(p)
	_, _ = w.ResponseWriter.Write(p)
	if w.left == 0 {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return len(p), nil
}

// DS-25: what came of a bundle does not have to come again. It is asked for without
// encoding, so that it goes on at the bytes that came.
func TestDS25ABundleGoesOnWhereItBrokeOff(t *testing.T) {
	s := serve(t)
	f := largeFleet()
	own := `"` + f.manifest.Bundle.Digest.String() + `"`
	other := slices.Clone(f.bundle)
	other[1000]++
	for name, test := range map[string]struct {
		server ranges
		before []byte   // in the spool
		asked  []string // Range and If-Range
	}{
		"at once":                       {ranges{}, nil, []string{""}},
		"cut twice":                     {ranges{cut: []int{100000, 50000}}, nil, []string{"", "bytes=100000- " + own, "bytes=150000- " + own}},
		"a part from before a restart":  {ranges{}, f.bundle[:70000], []string{"bytes=70000- " + own}},
		"all of it from before":         {ranges{}, f.bundle, nil},
		"something else from before":    {ranges{}, other[:70000], []string{"bytes=70000- " + own, ""}},
		"all of something else":         {ranges{}, other, []string{fmt.Sprintf("bytes=%d- %s", len(other), own), ""}},
		"more than there is":            {ranges{}, append(slices.Clone(f.bundle), 1, 2), []string{fmt.Sprintf("bytes=%d- %s", len(f.bundle)+2, own), ""}},
		"a server without ranges":       {ranges{plain: true}, f.bundle[:70000], []string{"bytes=70000- " + own}},
		"a server with another ETag":    {ranges{etag: `"v1"`}, f.bundle[:70000], []string{"bytes=70000- " + own}},
		"another ETag, cut":             {ranges{etag: `"v1"`, cut: []int{100000}}, nil, []string{"", `bytes=100000- "v1"`}},
		"a weak ETag, cut":              {ranges{etag: `W/"v1"`, cut: []int{100000}}, nil, []string{"", "bytes=100000-"}},
		"no ETag, cut":                  {ranges{etag: "-", cut: []int{100000}}, nil, []string{"", "bytes=100000-"}},
		"a server that sends in pieces": {ranges{piece: 150000}, f.bundle[:50000], []string{"bytes=50000- " + own, "bytes=200000- " + own, "bytes=350000- " + own}},
	} {
		t.Run(name, func(t *testing.T) {
			f.publish(s, "")
			server := &test.server
			server.content = f.bundle
			s.handle(f.bundleRoute(), server.ServeHTTP)
			spool := incoming(t, store.Options{})
			if test.before != nil {
				w := expect.Value(spool.Append(f.manifest.Bundle.Digest))(t)
				expect.Value(w.Write(test.before))(t)
				expect.Value(0, w.Close())(t)
			}
			expect.Value(get(t, s.client(t, withSpool(spool)), f))(t)
			expect.Equal(t, server.asked, test.asked, "asked")
			n := expect.Value(spool.Size(f.manifest.Bundle.Digest))(t)
			expect.Equal(t, n, int64(len(f.bundle)), "bytes in the spool for a second start")
		})
	}
}

// DS-10: digests are over the bytes after Content-Encoding was undone, and over
// no others. That they are accepted so is shown with DS-18.
func TestDS10DigestsAreOverTheDecodedBytes(t *testing.T) {
	s, c := pair(t)
	for name, of := range map[string]func(document []byte) []byte{"what was compressed": zip, "without the newline": bytes.TrimSpace} {
		f := newFleet(1, 100)
		f.manifest.Bundle = nil
		ref := &f.manifest.Deployments[0]
		document := f.documents[ref.ID]
		ref.Digest = digest.FromBytes(of(document))
		ref.URL = ""
		s.handle(f.documentRoute(0), serveEncoded("gzip", zip(document)))
		expect.Error(t, expect.ErrorOf(get(t, c, f)), wfm.ErrDigestMismatch, "%s", name)
	}
}

// A server that drips does not hold the device up; what came is kept.
func TestABundleThatDripsIsGivenUp(t *testing.T) {
	s := serve(t)
	f := largeFleet()
	s.handle(f.bundleRoute(), drip(nil))
	spool := incoming(t, store.Options{})
	_, err := get(t, s.client(t, withSpool(spool), func(o *wfm.Options) {
		o.Timeout = 300 * time.Millisecond
		o.Limits.Speed = 64 << 10
	}), f)
	expect.ErrorWith(t, err, "too long", "error")
	expect.Equal(t, retries(err), true, "to be repeated")
	if expect.Value(spool.Size(f.manifest.Bundle.Digest))(t) == 0 {
		t.Error("nothing of it was kept")
	}
}

// A disk without room for the bundle has some for the documents.
func TestAFullSpoolIsNoEnd(t *testing.T) {
	s := serve(t)
	f := largeFleet()
	f.publish(s, "")
	spool := incoming(t, store.Options{IncomingBytes: 100000})
	expect.Value(get(t, s.client(t, withSpool(spool)), f))(t)
	expect.Equal(t, expect.Value(spool.Size(f.manifest.Bundle.Digest))(t), 0, "bytes stay in the spool")
}

func TestAnErrorOfTheCallerEndsTheFetch(t *testing.T) {
	s, c := pair(t)
	f := newFleet(10, 100)
	f.publish(s, "")
	full := errors.New("no room")
	for name, need := range map[string][]margo.DeploymentRef{"bundle": f.manifest.Deployments, "one": f.manifest.Deployments[:1]} {
		s.took()
		calls := 0
		err := c.Documents(t.Context(), &wfm.Manifest{StateManifest: &f.manifest}, need, func(digest.Digest, []byte) error {
			calls++
			return full
		})
		if err != full || calls != 1 || len(s.took()) != 1 {
			t.Errorf("%s: error %v after %d calls", name, err, calls)
		}
	}
}

// stranger is a server of ordinary TLS that is not the WFM. It fails the test
// when it is shown anything of the device.
type stranger struct {
	*httptest.Server
	anchors  *x509.CertPool
	requests []string
	handler  http.Handler
}

func newStranger(t *testing.T) *stranger {
	t.Helper()
	authority := expect.Value(pki.NewServerAuthority("elsewhere", time.Now()))(t)
	certificate := expect.Value(authority.IssueServer([]string{"127.0.0.1"}))(t).TLS()
	s := &stranger{anchors: authority.Pool(), handler: http.NotFoundHandler()}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests = append(s.requests, r.URL.Path)
		expect.Equal(t, len(r.TLS.PeerCertificates), 0, "certificates shown to another origin")
		for name := range r.Header {
			if !slices.Contains([]string{"User-Agent", "Accept-Encoding", "Range", "If-Range"}, name) {
				t.Errorf("another origin was sent %s", name)
			}
		}
		w.Header().Set("Date", "Fri, 01 May 2020 12:00:00 GMT")
		s.handler.ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// What lies on another origin is fetched without credentials; what it does not
// give comes from the WFM.
func TestDS09OtherOriginsAreAskedWithoutCredentials(t *testing.T) {
	d := newTrust(t)
	i := d.device(t)
	for name, test := range map[string]struct {
		answer    func(f *fleet) http.HandlerFunc // to every request
		unknown   bool                            // its certificate is
		elsewhere int                             // requests there
		own       int                             // requests to the WFM
	}{
		"good":                  {answer: nil, elsewhere: 1},
		"not there":             {answer: func(*fleet) http.HandlerFunc { return http.NotFound }, elsewhere: 1, own: 1},
		"something else":        {answer: func(*fleet) http.HandlerFunc { return serveBytes([]byte("x")) }, elsewhere: 1, own: 1},
		"a redirect":            {answer: func(*fleet) http.HandlerFunc { return serveProblem(307, "", "Location", "/other") }, elsewhere: 1, own: 1},
		"busy for a day":        {answer: func(*fleet) http.HandlerFunc { return serveProblem(503, "", "Retry-After", "86400") }, elsewhere: 1, own: 1},
		"not to be trusted":     {answer: nil, unknown: true, own: 1},
		"larger than its limit": {answer: func(*fleet) http.HandlerFunc { return serveBytes(make([]byte, 2<<20)) }, elsewhere: 1, own: 1},
		"cut off and unhelpful": {answer: func(f *fleet) http.HandlerFunc { return serveTruncated(f.bundle[:50]) }, elsewhere: -1, own: 1},
	} {
		for _, kind := range []string{"bundle", "document"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				s := d.serve(t, "one")
				other := newStranger(t)
				f := newFleet(10, 100)
				f.publish(s, "")
				need := []int{2}
				f.manifest.Deployments[2].URL = other.URL + "/store/document"
				f.manifest.Bundle.URL = other.URL + "/store/bundle"
				if kind == "bundle" {
					need = nil
				}
				mux := http.NewServeMux()
				mux.Handle("/store/bundle", serveBytes(f.bundle))
				mux.Handle("/store/document", serveBytes(f.documents[f.manifest.Deployments[2].ID]))
				other.handler = mux
				if test.answer != nil {
					other.handler = test.answer(f)
				}
				c := client(t, i, s.URL, func(o *wfm.Options) {
					o.Authorization = func() (string, error) { return "Bearer secret", nil }
					o.OtherOrigins = &tls.Config{RootCAs: other.anchors, Certificates: []tls.Certificate{{Certificate: [][]byte{{1}}}}}
					if test.unknown {
						o.OtherOrigins = nil
					}
					o.Limits.Bundle = 1 << 20
				})
				expect.Value(get(t, c, f, need...))(t)
				if got := len(other.requests); got != test.elsewhere && test.elsewhere >= 0 {
					t.Errorf("%d requests elsewhere, want %d", got, test.elsewhere)
				}
				expect.Equal(t, len(s.took()), test.own, "requests to the WFM")
				expect.Equal(t, c.ServerTime().Year() == 2020, false, "another origin told the time")
			})
		}
	}
}

// A manifest cannot make the device wait for one server after the other.
func TestOtherOriginsAreBounded(t *testing.T) {
	s := serve(t)
	other := newStranger(t)
	f := newFleet(8, 100)
	f.publish(s, "")
	f.manifest.Bundle = nil
	for j := range f.manifest.Deployments {
		f.manifest.Deployments[j].URL = other.URL + "/x"
	}
	trusting := func(o *wfm.Options) { o.OtherOrigins = &tls.Config{RootCAs: other.anchors} }
	expect.Value(get(t, s.client(t, trusting), f))(t)
	expect.Equal(t, len(other.requests), 3, "requests elsewhere")
}
