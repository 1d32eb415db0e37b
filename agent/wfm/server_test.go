package wfm_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
)

const domain = "factory.example"

// trust is the trust domain of a test.
type trust struct {
	authority *pki.Authority
}

func newTrust(t *testing.T) trust {
	t.Helper()
	return trust{expect.Value(pki.NewAuthority(domain, time.Now()))(t)}
}

func (d trust) device(t *testing.T) *identity.Identity {
	t.Helper()
	files := expect.Value(pki.WriteFiles(t.TempDir(), expect.Value(d.authority.IssueClient("one", "gw-07"))(t), d.authority.Bundle()))(t)
	return expect.Value(identity.Load(identity.Options{Certificate: files.Certificate, Key: files.Key, TrustBundle: files.TrustBundle}))(t)
}

// server is a WFM that does what a test tells it to: a real TLS 1.3 server that
// asks for the client's certificate and checks it.
type server struct {
	*httptest.Server
	trust    trust
	accepted atomic.Int32 // connections

	mu       sync.Mutex
	handlers map[string]http.HandlerFunc // by method and path
	requests []string                    // method and path, in order
}

// unstarted is a server without a certificate.
func unstarted() *server {
	s := &server{handlers: make(map[string]http.HandlerFunc)}
	s.Server = httptest.NewUnstartedServer(s)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.accepted.Add(1)
		}
	}
	return s
}

func (d trust) serve(t *testing.T, wfmID string) *server {
	t.Helper()
	s := unstarted()
	s.trust = d
	s.TLS = &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{expect.Value(d.authority.IssueWFM(wfmID))(t).TLS()},
		ClientAuth:   tls.RequireAnyClientCert,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := pki.VerifyClient(state.PeerCertificates, d.authority.Bundle(), domain, time.Now())
			return err
		},
	}
	s.EnableHTTP2 = true // which nobody takes up (ID-11)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// serve starts the WFM of a trust domain of its own.
func serve(t *testing.T) *server {
	t.Helper()
	return newTrust(t).serve(t, "one")
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	route := r.Method + " " + r.URL.EscapedPath()
	s.mu.Lock()
	s.requests = append(s.requests, route)
	handler := s.handlers[route]
	s.mu.Unlock()
	if handler == nil {
		problem(w, http.StatusNotFound, `{"type":"about:blank","title":"Not Found","status":404}`)
		return
	}
	handler(w, r)
}

func (s *server) handle(route string, handler http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers[route] = handler
}

// took returns the requests since the last call.
func (s *server) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	requests := s.requests
	s.requests = nil
	return requests
}

func problem(w http.ResponseWriter, status int, body string) {
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/problem+json")
	}
	w.WriteHeader(status)
	io.WriteString(w, body)
}

// passing is a spool in which nothing lasts for longer than a call.
type passing struct{ *store.Incoming }

func (passing) Size(digest.Digest) (int64, error) { return 0, nil }

// client is one that speaks to s.
func client(t *testing.T, i *identity.Identity, url string, change ...func(*wfm.Options)) *wfm.Client {
	t.Helper()
	o := wfm.Options{URL: url, TLS: i.TLS(), Spool: passing{incoming(t, store.Options{})}, Timeout: 10 * time.Second}
	for _, c := range change {
		c(&o)
	}
	c := expect.Value(wfm.New(o))(t)
	t.Cleanup(c.CloseIdle)
	return c
}

// client is one of a device in the trust domain of s, which it speaks to.
func (s *server) client(t *testing.T, change ...func(*wfm.Options)) *wfm.Client {
	t.Helper()
	return client(t, s.trust.device(t), s.URL, change...)
}

// pair is a WFM, and a client that speaks to it.
func pair(t *testing.T, change ...func(*wfm.Options)) (*server, *wfm.Client) {
	t.Helper()
	s := serve(t)
	return s, s.client(t, change...)
}

// bystander is a TLS server that nobody has a reason to talk to. The test fails
// if it is connected to, before any certificate could be shown.
func (d trust) bystander(t *testing.T) string {
	t.Helper()
	s := d.serve(t, "one")
	t.Cleanup(func() {
		expect.Equal(t, s.accepted.Load(), 0, "connections to another origin")
	})
	return s.URL
}

// fleet is a desired state: documents, the bundle of them, and the manifest.
type fleet struct {
	documents map[string][]byte // by deployment id
	bundle    []byte
	manifest  margo.StateManifest
}

// newFleet makes n documents of about the given size.
func newFleet(n, size int) *fleet {
	return fleetOf(n, func(id string) []byte { return fmt.Appendf(nil, "id: %s\n#%s\n", id, strings.Repeat("x", size)) })
}

// fleetOf makes n documents.
func fleetOf(n int, write func(id string) []byte) *fleet {
	f := &fleet{documents: make(map[string][]byte)}
	f.manifest.Version = 7
	var files []file
	for i := range n {
		id := fmt.Sprintf("ad9b614e-8912-45f4-a523-%012d", i)
		document := write(id)
		d := digest.FromBytes(document)
		f.documents[id] = document
		files = append(files, file{name: id + ".yaml", content: document})
		f.manifest.Deployments = append(f.manifest.Deployments, margo.DeploymentRef{
			ID: id, Digest: d, SizeBytes: uint64(len(document)), URL: "/api/v1/deployments/" + id + "/" + d.String(),
		})
	}
	f.pack(archive(files...))
	return f
}

// pack makes an archive the bundle of the manifest.
func (f *fleet) pack(archive []byte) {
	d := digest.FromBytes(archive)
	f.bundle = archive
	f.manifest.Bundle = &margo.Bundle{
		MediaType: margo.BundleMediaType, Digest: d, SizeBytes: uint64(len(archive)), URL: "/api/v1/bundles/" + d.String(),
	}
}

// sized says that the bundle has one size, and each document another.
func (f *fleet) sized(bundle, document uint64) *fleet {
	f.manifest.Bundle.SizeBytes = bundle
	for i := range f.manifest.Deployments {
		f.manifest.Deployments[i].SizeBytes = document
	}
	return f
}

func (f *fleet) raw() []byte { return expect.Must(json.Marshal(f.manifest)) }

func (f *fleet) bundleRoute() string {
	return "GET /api/v1/bundles/" + f.manifest.Bundle.Digest.String()
}

func (f *fleet) documentRoute(i int) string {
	ref := f.manifest.Deployments[i]
	return "GET /api/v1/deployments/" + ref.ID + "/" + ref.Digest.String()
}

// publish makes the server serve the fleet, all URLs below a prefix.
func (f *fleet) publish(s *server, prefix string) {
	below := func(route string) string { return strings.Replace(route, " /", " "+prefix+"/", 1) }
	s.handle(below("GET /api/v1/deployments"), serveManifest(f.raw()))
	s.handle(below(f.bundleRoute()), serveBytes(f.bundle))
	for i, ref := range f.manifest.Deployments {
		s.handle(below(f.documentRoute(i)), serveBytes(f.documents[ref.ID]))
	}
}

func serveManifest(raw []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", margo.ManifestMediaType)
		w.Header().Set("ETag", `"`+digest.FromBytes(raw).String()+`"`)
		if r.Header.Get("If-None-Match") == w.Header().Get("ETag") {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Write(raw)
	}
}

func serveBytes(content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.Write(content) }
}

// serveEncoded serves content under a Content-Encoding header.
func serveEncoded(encoding string, content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", encoding)
		w.Write(content)
	}
}

// serveTruncated promises more than it sends.
func serveTruncated(content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)+1))
		w.Write(content)
	}
}

func serveProblem(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		problem(w, status, body)
	}
}

type file struct {
	name    string
	content []byte
	kind    byte // tar.TypeReg if zero
	link    string
}

func archive(files ...file) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Typeflag: f.kind, Linkname: f.link, Mode: 0o644, Size: int64(len(f.content))}
		if header.Typeflag == 0 {
			header.Typeflag = tar.TypeReg
		}
		if header.Typeflag == tar.TypeXGlobalHeader {
			header = &tar.Header{Typeflag: f.kind, Name: f.name, PAXRecords: map[string]string{"comment": "x"}}
		}
		expect.Must(0, w.WriteHeader(header))
		expect.Must(w.Write(f.content))
	}
	expect.Must(0, w.Close())
	return zip(b.Bytes())
}

func zip(content []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	expect.Must(z.Write(content))
	expect.Must(0, z.Close())
	return b.Bytes()
}

var check = expect.Check
