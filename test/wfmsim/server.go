package wfmsim

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/internal/serving"
	"github.com/margolite/margolite/test/wfmsim/record"
)

// URLForm is how the manifest writes the URLs of documents and bundle.
type URLForm int

// The forms met in the field; the standard's examples show the first.
const (
	OriginRelative URLForm = iota // /prefix/api/v1/...
	WithoutPrefix                 // /api/v1/..., although the interface is mounted under a prefix
	Absolute                      // https://host:port/prefix/api/v1/...
)

// Options of a WFM.
type Options struct {
	ID     identity.ID           // who the WFM is
	SVID   tls.Certificate       // what it presents; a sound one for ID unless a test wants otherwise
	Bundle *identity.TrustBundle // the anchors of its trust domain

	// Clients are the client ids (the last segment of their SPIFFE ID) that
	// the WFM accepts; nil: every client of this WFM.
	Clients []string

	Prefix string  // path under which the interface is mounted, "" or "/a/b"
	URLs   URLForm // in manifests
	Gzip   bool    // compress documents for clients that accept it

	File string           // where the state is kept; empty: in memory
	Now  func() time.Time // decides on the validity of certificates; nil: time.Now
	// TLS has the last word on the TLS configuration, for handshakes that a
	// client has to refuse; nil: nothing to say.
	TLS func(*tls.Config)

	Logger *slog.Logger // nil: silent
}

// Server is one WFM. Its methods may be called at any time from any goroutine.
type Server struct {
	options  Options
	now      func() time.Time
	logger   *slog.Logger
	faults   *fault.Switches
	requests *record.Log
	server   serving.Server

	mu      sync.Mutex
	svid    tls.Certificate
	bundle  *identity.TrustBundle
	state   state
	raw     map[string]Raw  // by client
	retired map[string]bool // clients that were accepted once
	changed chan struct{}   // closed and replaced at every change of the state
}

// New makes a WFM with the state kept in Options.File, or with none.
func New(o Options) (*Server, error) {
	switch {
	case o.ID.Role() != identity.RoleWFM || o.ID.WFM == "" || o.ID.TrustDomain == "":
		return nil, fmt.Errorf("cannot create WFM: %q is not the identity of a WFM", o.ID)
	case len(o.SVID.Certificate) == 0:
		return nil, errors.New("cannot create WFM: it has no certificate")
	case o.Bundle == nil:
		return nil, errors.New("cannot create WFM: it has no trust bundle")
	case o.Prefix != "" && (!strings.HasPrefix(o.Prefix, "/") || strings.HasSuffix(o.Prefix, "/")):
		return nil, fmt.Errorf("cannot create WFM: prefix %q has to begin with a slash and not to end with one", o.Prefix)
	}
	s := &Server{
		options: o,
		now:     o.Now,
		logger:  o.Logger,
		faults:  fault.New(answerFault),
		svid:    o.SVID,
		bundle:  o.Bundle,
		raw:     map[string]Raw{},
		retired: map[string]bool{},
		changed: make(chan struct{}),
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	s.requests = record.New(record.Options{
		Header: []string{"Accept", "Accept-Encoding", "Content-Type", "If-None-Match", "User-Agent"},
		Client: func(r *http.Request) string { return claimed(r).Client },
	})
	if err := s.state.load(o.File); err != nil {
		return nil, fmt.Errorf("cannot create WFM: %w", err)
	}
	s.server = serving.Server{
		Handler: http.HandlerFunc(s.route),
		TLS:     s.tlsConfig(),
		Log:     log.New(io.Discard, "", 0), // handshakes that fail are the clients' to report
	}
	return s, nil
}

// Start opens the interface on host:port; empty is the address it had before,
// and the first time any free port of the loopback interface.
func (s *Server) Start(address string) error { return s.server.Start(address) }

// Serve opens the interface on a listener.
func (s *Server) Serve(l net.Listener) error { return s.server.Serve(l) }

// Close ends all connections: the WFM is gone. Its state stays for Start.
func (s *Server) Close() error { return s.server.Close() }

// Address is the host:port of the interface.
func (s *Server) Address() string { return s.server.Address() }

// URL is the base URL that a client is configured with.
func (s *Server) URL() string { return "https://" + s.Address() + s.options.Prefix }

// Faults lets requests fail.
func (s *Server) Faults() *fault.Switches { return s.faults }

// Requests is the memory of what was asked.
func (s *Server) Requests() *record.Log { return s.requests }

// SetSVID changes the certificate that is presented from the next connection on.
func (s *Server) SetSVID(svid tls.Certificate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.svid = svid
}

// SetBundle changes the anchors that clients are checked against.
func (s *Server) SetBundle(bundle *identity.TrustBundle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bundle = bundle
}

// Retire ends the relationship with a client: it is answered 403 from now on.
func (s *Server) Retire(client string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired[client] = true
}

// Reinstate takes a retired client back.
func (s *Server) Reinstate(client string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.retired, client)
}

func (s *Server) tlsConfig() *tls.Config {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,     // ID-10
		NextProtos: []string{"http/1.1"}, // ID-11
		Time:       s.now,
		// The standard verification wants an extended key usage and knows
		// nothing of SPIFFE; verifyClient takes its place in full.
		ClientAuth:             tls.RequireAnyClientCert,
		VerifyConnection:       s.verifyClient,
		SessionTicketsDisabled: true, // each connection is a full handshake (ID-13)
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			svid := s.svid
			return &svid, nil
		},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			for _, f := range s.faults.Take(EndpointHandshake, "") {
				if f.Kind == fault.Refuse {
					return nil, errors.New("refused by an injected fault")
				}
			}
			return nil, nil // this configuration
		},
	}
	if s.options.TLS != nil {
		s.options.TLS(config)
	}
	return config
}

func (s *Server) verifyClient(connection tls.ConnectionState) error {
	s.mu.Lock()
	bundle := s.bundle
	s.mu.Unlock()
	_, err := identity.Verify(connection.PeerCertificates, identity.Policy{
		Bundle:      bundle,
		TrustDomain: s.options.ID.TrustDomain,
		Role:        identity.RoleClient,
		At:          s.now(),
	})
	return err
}

// claimed is the identity in the certificate of a request. Who holds a
// connection has proved it in the handshake.
func claimed(r *http.Request) identity.ID {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || len(r.TLS.PeerCertificates[0].URIs) != 1 {
		return identity.ID{}
	}
	id, err := identity.ParseSPIFFEID(r.TLS.PeerCertificates[0].URIs[0].String())
	if err != nil {
		return identity.ID{}
	}
	return id
}

// authorize decides for each request, because certificates, anchors and policy
// change under a connection that stays (ID-12).
func (s *Server) authorize(r *http.Request) (client string, refusal *problem) {
	id := claimed(r)
	switch {
	case r.TLS == nil || s.verifyClient(*r.TLS) != nil:
		return "", notAuthorized("Not Authorized", "The client's X.509-SVID is not valid any more.")
	case id.Server() != s.options.ID:
		return "", notAuthorized("Not Authorized", id.String()+" is not a client of "+s.options.ID.String()+".")
	case s.options.Clients != nil && !slices.Contains(s.options.Clients, id.Client):
		return "", notAuthorized("Not Authorized", id.String()+" is not on the list of accepted clients.")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired[id.Client] {
		return "", notAuthorized("Client Relationship Retired", "The WFM Client relationship has been retired by local policy.")
	}
	return id.Client, nil
}

// tell wakes everybody who waits for a change. The caller holds the lock.
func (s *Server) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}
