// Package mis is a Margo Identity Service for tests and for the development WFM:
// the discovery document and the trust bundle of one trust domain, over https
// with an ordinary certificate.
//
// It serves what the standard wants and nothing else, and goes wrong where a
// fault says so. Clients prove nothing here; that the server is the right one is
// theirs to check, by its certificate.
package mis

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/record"
	"github.com/margolite/margolite/test/wfmsim/serving"
)

// Paths of the endpoints.
const (
	DiscoveryPath = "/.well-known/margo"
	BundlePath    = "/.well-known/spiffe/bundle.json"
)

// Names of the endpoints, for faults and for the record.
const (
	EndpointDiscovery = "discovery"
	EndpointBundle    = "bundle"
	EndpointOther     = "other"
)

// Options of a service.
type Options struct {
	TrustDomain string
	Bundle      *identity.TrustBundle
	Certificate tls.Certificate // an ordinary one (pki.ServerAuthority)
}

// Server is one service. Its methods may be called at any time from any goroutine.
type Server struct {
	*serving.Server

	options Options

	mu     sync.Mutex
	bundle *identity.TrustBundle
}

// New makes a service; Start opens it.
func New(o Options) (*Server, error) {
	switch {
	case o.TrustDomain == "":
		return nil, errors.New("cannot create MIS: it has no trust domain")
	case len(o.Certificate.Certificate) == 0:
		return nil, errors.New("cannot create MIS: it has no certificate")
	}
	s := &Server{options: o, bundle: o.Bundle}
	s.Server = serving.New(serving.Options{
		Handler: s.route,
		TLS: &tls.Config{
			MinVersion:             tls.VersionTLS13,
			NextProtos:             []string{"http/1.1"},
			Certificates:           []tls.Certificate{o.Certificate},
			SessionTicketsDisabled: true,
		},
		Faults: fault.Options{Answer: s.answerFault},
		Record: record.Options{Header: []string{"Accept", "If-None-Match", "User-Agent"}},
	})
	return s, nil
}

// DiscoveryURL is that of the discovery document.
func (s *Server) DiscoveryURL() string { return "https://" + s.Address() + DiscoveryPath }

// BundleURL is that of the trust bundle.
func (s *Server) BundleURL() string { return "https://" + s.Address() + BundlePath }

// SetBundle rotates the anchors; nil: there is no bundle, which is a 404.
func (s *Server) SetBundle(bundle *identity.TrustBundle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bundle = bundle
}

func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	endpoint, handle := EndpointOther, func(w http.ResponseWriter, r *http.Request) {
		problem(w, r, http.StatusNotFound, "", "Not Found", "There is nothing here.")
	}
	switch r.URL.EscapedPath() {
	case DiscoveryPath:
		endpoint, handle = EndpointDiscovery, s.discovery
	case BundlePath:
		endpoint, handle = EndpointBundle, s.trustBundle
	}
	s.Wrap(endpoint, http.HandlerFunc(handle)).ServeHTTP(w, r)
}

func (s *Server) discovery(w http.ResponseWriter, r *http.Request) {
	body, err := json.Marshal(map[string]string{"trustDomain": s.options.TrustDomain, "trustBundleUri": s.BundleURL()})
	serve(w, r, body, err)
}

func (s *Server) trustBundle(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	bundle := s.bundle
	s.mu.Unlock()
	if bundle == nil {
		notFound(w, r)
		return
	}
	body, err := pki.MarshalBundle(bundle)
	serve(w, r, body, err)
}

func serve(w http.ResponseWriter, r *http.Request, body []byte, err error) {
	if err != nil {
		problem(w, r, http.StatusInternalServerError, "", "Internal Server Error", err.Error())
		return
	}
	etag := `"` + digest.FromBytes(body).Encoded() + `"`
	w.Header().Set("ETag", etag)
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("Content-Type", "application/json")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// retryAfter is what a bundle that is not there is worth waiting for, in seconds.
const retryAfter = 30

// notFound is the 404 of either endpoint, with the type registered for it.
func notFound(w http.ResponseWriter, r *http.Request) {
	if r.URL.EscapedPath() == BundlePath {
		problem(w, r, http.StatusNotFound, margo.ProblemSPIFFEBundleNotFound, "Bundle not found",
			"No SPIFFE bundle was found for the given Trust Domain.")
		return
	}
	problem(w, r, http.StatusNotFound, margo.ProblemDiscoveryDocumentNotFound, "Discovery document not found",
		"There is no discovery document for the Trust Domain.")
}

func (s *Server) answerFault(w http.ResponseWriter, r *http.Request, f fault.Fault) {
	if f.RetryAfter != "" && f.RetryAfter != fault.NoRetryAfter {
		w.Header().Set("Retry-After", f.RetryAfter)
	}
	switch {
	case f.Status < 400:
		w.WriteHeader(f.Status)
	case f.Status == http.StatusNotFound && f.What == "":
		notFound(w, r)
	default:
		problem(w, r, f.Status, margo.ProblemKind(f.What), cmp.Or(http.StatusText(f.Status), "Error"), "Injected fault.")
	}
}

func problem(w http.ResponseWriter, r *http.Request, status int, kind margo.ProblemKind, title, detail string) {
	p := margo.ProblemDetail{
		Type: "about:blank", Title: title, Status: status, Detail: detail, Instance: r.URL.EscapedPath(),
		Backoff: margo.BackoffNone,
	}
	if kind != "" {
		p.Type = margo.ProblemBase + string(kind)
	}
	if kind == margo.ProblemSPIFFEBundleNotFound || slices.Contains([]int{429, 500, 503}, status) {
		p.Retryable, p.Backoff, p.RetryAfterSeconds = true, margo.BackoffExponential, retryAfter
	}
	serving.Answer(w, status, margo.ProblemMediaType, p)
}
