package identity_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
)

// misServer is a Margo Identity Service on a real TLS socket that does what a
// test tells it to.
type misServer struct {
	*httptest.Server

	mu       sync.Mutex
	handlers map[string]http.HandlerFunc // by path
	requests []*http.Request
	shown    int // certificates of clients
}

// serveMIS starts a service with a certificate.
func serveMIS(t *testing.T, certificate *pki.SVID, change ...func(*tls.Config)) *misServer {
	t.Helper()
	s := &misServer{handlers: map[string]http.HandlerFunc{}}
	s.Server = httptest.NewUnstartedServer(s)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.TLS = &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate.TLS()}, ClientAuth: tls.RequestClientCert,
		NextProtos: []string{"h2", "http/1.1"},
		VerifyConnection: func(state tls.ConnectionState) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.shown += len(state.PeerCertificates)
			return nil
		},
	}
	for _, c := range change {
		c(s.TLS)
	}
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *misServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r)
	handler := s.handlers[r.URL.Path]
	s.mu.Unlock()
	if handler == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	handler(w, r)
}

func (s *misServer) handle(path string, handler http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers[path] = handler
}

// publish serves content, with an ETag if it is given one.
func (s *misServer) publish(path string, content []byte, etag string) {
	s.handle(path, func(w http.ResponseWriter, r *http.Request) {
		if etag != "" {
			w.Header().Set("ETag", etag)
		}
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		w.Header().Set("Expires", "Fri, 01 Jan 2100 00:00:00 GMT")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	})
}

func (s *misServer) discovery(trustDomain, uri string) {
	s.publish("/.well-known/margo", fmt.Appendf(nil, `{"trustDomain":%q,"trustBundleUri":%q,"x-more":{"a":[1]}}`, trustDomain, uri), `"d1"`)
}

// took returns the requests since the last call.
func (s *misServer) took() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	requests := s.requests
	s.requests = nil
	return requests
}

// port is ":1234", to reach the server under another name.
func (s *misServer) port() string { return s.URL[strings.LastIndex(s.URL, ":"):] }

// web is the ordinary PKI that the identity service has its certificate from.
func web(t *testing.T) (*pki.Authority, *pki.SVID, string) {
	t.Helper()
	a := expect.Value(pki.NewAuthority("web.example", noon))(t)
	return a, expect.Value(a.IssueServer(pki.Hosts("127.0.0.1", "localhost")))(t), caFile(t, a.BundlePEM())
}

func caFile(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	write(t, path, content)
	return path
}

func pin(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return base64.StdEncoding.EncodeToString(sum[:])
}

func service(t *testing.T, o identity.ServiceOptions) *identity.Service {
	t.Helper()
	if o.Now == nil {
		o.Now = clock(noon)
	}
	o.Get = wfm.Get // whose bounds are shown in its own room
	return expect.Value(identity.NewService(o))(t)
}

const (
	wellKnown  = "/.well-known/margo"
	bundlePath = "/bundle.json"

	byName, byAddress = "https://localhost", "https://127.0.0.1"
)

// proof is what a service shows, and what the device believes.
type proof struct {
	server *pki.SVID
	pins   []string
	ca     string
	host   string
	now    time.Time       // by a clock that is wrong; zero: noon
	want   identity.Reason // "": accepted
}

// check fetches a bundle from the service.
func (p proof) check(t *testing.T, bundle []byte) {
	t.Helper()
	mis := serveMIS(t, p.server)
	mis.publish(bundlePath, bundle, "")
	o := identity.ServiceOptions{Bundle: p.host + mis.port() + bundlePath, CA: p.ca, Pins: p.pins}
	if !p.now.IsZero() {
		o.Now, o.WrongClock = clock(p.now), func() (time.Time, bool) { return p.now, true }
	}
	got, err := service(t, o).Bundle(t.Context(), domain, identity.Fetched{})
	checkService(t, mis, got, err, p.want)
	expect.Equal(t, strings.Contains(fmt.Sprint(err), "clock is wrong"), !p.now.IsZero(), "%v names the wrong clock", err)
}

func TestID14TheServiceProvesItselfByAnchorsAndName(t *testing.T) {
	a, certificate, ca := web(t)
	svids := authority(t) // of the trust domain
	bundle := expect.Value(svids.BundleJSON())(t)
	day := 24 * time.Hour

	tests := map[string]proof{
		"ID-14 anchors and name":                    {server: certificate, ca: ca, host: byName},
		"ID-14 anchors and address":                 {server: certificate, ca: ca, host: byAddress},
		"ID-14 another name":                        {server: expect.Value(a.IssueServer(pki.Hosts("mis.example")))(t), ca: ca, host: byName, want: identity.Unauthenticated},
		"ID-14 no name for an address":              {server: expect.Value(a.IssueServer(pki.Hosts("localhost")))(t), ca: ca, host: byAddress, want: identity.Unauthenticated},
		"ID-15 other anchors":                       {server: certificate, ca: caFile(t, svids.BundlePEM()), host: byName, want: identity.Unauthenticated},
		"ID-15 the system's anchors do not know it": {server: certificate, host: byName, want: identity.Unauthenticated},
		"ID-17 an SVID, though the bundle knows it": {server: expect.Value(svids.IssueWFM("one", pki.Hosts("localhost")))(t), ca: ca, host: byName, want: identity.Unauthenticated},
		"ID-09, ID-16 expired":                      {server: certificate, ca: ca, host: byName, now: noon.Add(91 * day), want: identity.Expired},
		"ID-09, ID-16 not valid yet":                {server: certificate, ca: ca, host: byName, now: time.Unix(0, 0), want: identity.NotYetValid},
		"ID-16 a file of anchors that is not there": {server: certificate, ca: "/nowhere/ca.pem", host: byName, want: identity.Missing},
		"ID-16 a certificate for clients only":      {server: expect.Value(a.IssueServer(pki.Hosts("localhost"), pki.ExtKeyUsage(x509.ExtKeyUsageClientAuth)))(t), ca: ca, host: byName, want: identity.Unauthenticated},
		"ID-16 a file of anchors that holds none":   {server: certificate, ca: caFile(t, []byte("no certificate\n")), host: byName, want: identity.Malformed},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test.check(t, bundle) })
	}
}

// checkService checks that the bundle was fetched, or the server got nothing.
func checkService(t *testing.T, mis *misServer, got identity.Fetched, err error, want identity.Reason) {
	t.Helper()
	requests := mis.took()
	if want != "" {
		expect.Equal(t, reasonOf(t, err), want, "reason of %v", err)
		expect.Equal(t, len(requests), 0, "requests to a server that was refused")
		return
	}
	check(t, err)
	expect.OK(t, expect.ErrorOf(identity.ParseTrustBundle(got.Data)))
	if len(requests) != 1 || requests[0].ProtoMajor != 1 || requests[0].Header.Get("Accept") != "application/json" {
		t.Errorf("requests: %+v", requests)
	}
	mis.mu.Lock()
	defer mis.mu.Unlock()
	expect.Equal(t, mis.shown, 0, "the device showed a certificate to the identity service")
}

func TestID14TheServiceProvesItselfByPins(t *testing.T) {
	a, certificate, ca := web(t)
	stranger := expect.Value(pki.NewAuthority("web.example", noon))(t)
	bundle := expect.Value(authority(t).BundleJSON())(t)
	leaf := pin(certificate.Chain[0])

	// The pinned issuer's certificate is public: a stranger can present it.
	forged := expect.Value(stranger.IssueServer(pki.Hosts("localhost")))(t)
	forged.Chain = append(forged.Chain, a.Intermediate, certificate.Chain[0])
	alone := expect.Value(a.IssueServer(pki.Hosts("localhost")))(t)
	alone.Chain = alone.Chain[:1]
	// The same key in another certificate.
	key := expect.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	former := expect.Value(a.IssueServer(pki.Hosts("localhost"), pki.Key(key)))(t)
	renewed := expect.Value(stranger.IssueServer(pki.Hosts("localhost"), pki.Key(key)))(t)

	tests := map[string]proof{
		"ID-14 the leaf":                                {server: certificate, pins: []string{leaf}, host: byName},
		"ID-14 the intermediate":                        {server: certificate, pins: []string{pin(a.Intermediate)}, host: byName},
		"ID-14 the root, which is not presented":        {server: certificate, pins: []string{pin(a.Root)}, ca: ca, host: byName},
		"ID-14 the root, which nobody has":              {server: certificate, pins: []string{pin(a.Root)}, host: byName, want: identity.Unauthenticated},
		"ID-14 the key, in a renewed certificate":       {server: renewed, pins: []string{pin(former.Chain[0])}, host: byName},
		"ID-14 an address instead of a name":            {server: certificate, pins: []string{leaf}, host: byAddress},
		"ID-14 an address that the certificate lacks":   {server: expect.Value(a.IssueServer(pki.Hosts("mis.example")))(t), pins: []string{pin(a.Intermediate)}, host: byAddress},
		"ID-14 another name":                            {server: expect.Value(a.IssueServer(pki.Hosts("mis.example")))(t), pins: []string{pin(a.Intermediate)}, host: byName, want: identity.Unauthenticated},
		"ID-15 another key":                             {server: certificate, pins: []string{pin(stranger.Root)}, ca: ca, host: byName, want: identity.Unauthenticated},
		"ID-15 pinned certificates that do not sign it": {server: forged, pins: []string{pin(a.Intermediate), leaf}, host: byName, want: identity.Unauthenticated},
		"ID-16 no intermediate to the pinned root":      {server: alone, pins: []string{pin(a.Root)}, ca: ca, host: byName, want: identity.Unauthenticated},
		"ID-16 expired":                                 {server: certificate, pins: []string{leaf}, host: byName, now: noon.Add(91 * 24 * time.Hour), want: identity.Expired},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test.check(t, bundle) })
	}
}

func TestID10TheServiceIsSpokenToWithTLS13(t *testing.T) {
	_, certificate, ca := web(t)
	mis := serveMIS(t, certificate, func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 })
	mis.publish(bundlePath, expect.Value(authority(t).BundleJSON())(t), "")
	o := identity.ServiceOptions{Bundle: mis.URL + bundlePath, CA: ca}
	if _, err := service(t, o).Bundle(t.Context(), domain, identity.Fetched{}); err == nil || len(mis.took()) != 0 {
		t.Errorf("TLS 1.2 was accepted: %v", err)
	}
	o.TLS12 = true
	expect.Error(t, expect.ErrorOf(service(t, o).Bundle(t.Context(), domain, identity.Fetched{})), nil, "where it is allowed")
}

func TestID18Discovery(t *testing.T) {
	_, certificate, ca := web(t)
	bundle := expect.Value(authority(t).BundleJSON())(t)
	tests := map[string]struct {
		status      int
		trustDomain string
		configured  bool // the bundle's URL is configured, too
		ok          bool
		reason      identity.Reason
	}{
		"ID-18 leads to the bundle":             {status: 200, trustDomain: domain, ok: true},
		"ID-18 of another trust domain":         {status: 200, trustDomain: "other.example", configured: true, reason: identity.OtherTrustDomain},
		"ID-18 a trust domain in another case":  {status: 200, trustDomain: "Factory.example", reason: identity.OtherTrustDomain},
		"ID-18 404 leads to what is configured": {status: 404, configured: true, ok: true},
		"ID-18 404 with nothing configured":     {status: 404},
		"ID-18 500 is no 404":                   {status: 500, configured: true},
		"ID-17 a redirect is not followed":      {status: 302, trustDomain: domain, configured: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			mis := serveMIS(t, certificate)
			mis.publish(bundlePath, bundle, "")
			document := fmt.Appendf(nil, `{"trustDomain":%q,"trustBundleUri":%q}`, test.trustDomain, mis.URL+bundlePath)
			mis.publish("/elsewhere", document, "") // nothing but the redirect is wrong with it
			mis.handle(wellKnown, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(test.status)
				w.Write(document)
			})
			o := identity.ServiceOptions{Discovery: mis.URL + wellKnown, CA: ca}
			if test.configured {
				o.Bundle = mis.URL + bundlePath
			}
			got, err := service(t, o).Bundle(t.Context(), domain, identity.Fetched{})
			if test.ok {
				if err != nil || string(got.Data) != string(bundle) || got.URL != mis.URL+bundlePath {
					t.Errorf("got %d bytes of %s, %v", len(got.Data), got.URL, err)
				}
				return
			}
			expect.True(t, err != nil && (test.reason == "" || reasonOf(t, err) == test.reason), "error %v, want %q", err, test.reason)
		})
	}
}

func TestID17TheBundleMayBeOnAnotherOriginThatProvesItselfLikewise(t *testing.T) {
	a, certificate, ca := web(t)
	bundle := expect.Value(authority(t).BundleJSON())(t)
	elsewhere := expect.Value(pki.NewAuthority("elsewhere.example", noon))(t)
	localhost := []pki.Option{pki.Hosts("127.0.0.1", "localhost")}
	tests := map[string]struct {
		options identity.ServiceOptions
		server  *pki.SVID // of the bundle
		want    identity.Reason
	}{
		"ID-17 the anchors cover it":        {identity.ServiceOptions{CA: ca}, expect.Value(a.IssueServer(localhost...))(t), ""},
		"ID-17 the anchors do not cover it": {identity.ServiceOptions{CA: ca}, expect.Value(elsewhere.IssueServer(localhost...))(t), identity.Unauthenticated},
		"ID-17 a pin covers it":             {identity.ServiceOptions{Pins: []string{pin(a.Intermediate)}}, expect.Value(a.IssueServer(localhost...))(t), ""},
		"ID-17 no pin covers it":            {identity.ServiceOptions{Pins: []string{pin(certificate.Chain[0])}}, expect.Value(a.IssueServer(localhost...))(t), identity.Unauthenticated},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			first, second := serveMIS(t, certificate), serveMIS(t, test.server)
			second.publish(bundlePath, bundle, "")
			first.discovery(domain, second.URL+bundlePath)
			o := test.options
			o.Discovery = first.URL + wellKnown
			got, err := service(t, o).Bundle(t.Context(), domain, identity.Fetched{})
			expect.Equal(t, len(first.took()), 1, "requests for the discovery document")
			checkService(t, second, got, err, test.want)
		})
	}
}

func TestID23RequestsAreConditional(t *testing.T) {
	_, certificate, ca := web(t)
	mis := serveMIS(t, certificate)
	first, second := expect.Value(authority(t).BundleJSON())(t), expect.Value(authority(t).BundleJSON())(t)
	mis.publish(bundlePath, first, `"b1"`)
	mis.discovery(domain, mis.URL+bundlePath)
	s := service(t, identity.ServiceOptions{Discovery: mis.URL + wellKnown, CA: ca})

	known := expect.Value(s.Bundle(t.Context(), domain, identity.Fetched{}))(t)
	expect.Equal(t, known.ETag, `"b1"`, "ETag")
	mis.took()
	expect.Equal(t, expect.Value(s.Bundle(t.Context(), domain, known))(t).Data, first, "bundle that is known")
	requests := mis.took()
	if len(requests) != 2 || requests[0].Header.Get("If-None-Match") != `"d1"` || requests[1].Header.Get("If-None-Match") != `"b1"` {
		t.Errorf("requests: %+v", requests)
	}

	// One that would match every bundle there will ever be, as a damaged record has it, is
	// not sent: see margo.UsableETag.
	odd := known
	odd.ETag = "*"
	if _, err := s.Bundle(t.Context(), domain, odd); err != nil || mis.took()[1].Header.Get("If-None-Match") != "" {
		t.Errorf("with the ETag *: %v", err)
	}

	// An ETag is worth nothing at another place.
	mis.publish("/other.json", second, `"b1"`)
	mis.publish(wellKnown, fmt.Appendf(nil, `{"trustDomain":%q,"trustBundleUri":%q}`, domain, mis.URL+"/other.json"), `"d2"`)
	expect.Equal(t, expect.Value(s.Bundle(t.Context(), domain, known))(t).Data, second, "bundle that has moved")

	// Nobody asked for a 304.
	mis.handle("/other.json", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) })
	expect.ErrorWith(t, expect.ErrorOf(s.Bundle(t.Context(), domain, identity.Fetched{})), "304", "to an unconditional request")
}

func TestPinsAndURLsAreChecked(t *testing.T) {
	for _, pin := range []string{"AAAA", strings.Repeat("-", 44), strings.Repeat("ab", 32)} {
		expect.True(t, expect.ErrorOf(identity.NewService(identity.ServiceOptions{Pins: []string{pin}})) != nil, "pin %s is accepted", pin)
	}
	for _, url := range []string{"", "http://mis.example/b", "https://u:secret@mis.example:x/b"} {
		_, err := service(t, identity.ServiceOptions{Bundle: url}).Bundle(t.Context(), domain, identity.Fetched{})
		expect.True(t, err != nil && !strings.Contains(err.Error(), "secret"), "accepted, or the error shows a password: %v", err)
	}
}
