package wfmsim

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/record"
	"github.com/margolite/margolite/test/wfmsim/serving"
)

// URLForm is how the manifest writes the URLs of documents and bundle.
type URLForm int

// The forms met in the field; the standard's examples show the first.
const (
	OriginRelative URLForm = iota // /prefix/api/v1/...
	Absolute                      // https://host:port/prefix/api/v1/...
	Legacy                        // /prefix/api/v1/clients/..., of a client id that is not valid (any more)
)

// Options of a WFM.
type Options struct {
	Revision margo.Revision

	// ID is who the WFM is, and Bundle holds the anchors of its trust domain.
	// They are for clients that present SVIDs: needed with RC3, unless a gateway
	// stands before it.
	ID     identity.ID
	Bundle *identity.TrustBundle

	// SVID is what the server presents: with ID and Bundle an SVID, else an
	// ordinary certificate (pki.ServerAuthority).
	SVID tls.Certificate

	// Root are the anchors, in PEM, that clients are told at
	// /onboarding/certificate; empty: nothing is to be had there.
	Root []byte

	// Authorization makes the server one behind a gateway, which terminates TLS with
	// an ordinary certificate and wants an Authorization header on every
	// request. It maps the values that the header may have ("Basic ...",
	// "Bearer ...") to the client that each belongs to, which is who asks with
	// RC3; with the earlier revisions the path and the signature tell that.
	Authorization map[string]string

	// Clients are the client ids (the last segment of their SPIFFE ID) that
	// the WFM accepts; nil: every client of this WFM. Before RC3 it says nothing.
	Clients []string

	// Approval makes clients that nobody knows wait until Approve.
	Approval bool
	// ClientCAs are who may have issued the certificates that clients sign with;
	// nil: anybody.
	ClientCAs *x509.CertPool

	Prefix string  // path under which the interface is mounted, "" or "/a/b"
	URLs   URLForm // in manifests

	Quirks Quirks // see Likes

	File   string       // where the state is kept; empty: in memory
	Logger *slog.Logger // nil: silent
}

// svids says whether clients prove who they are by X.509-SVIDs.
func (o Options) svids() bool { return o.Revision == margo.RC3 && o.Authorization == nil }

// Server is one WFM. Its methods may be called at any time from any goroutine.
type Server struct {
	*serving.Server // Close leaves the state for Start

	options Options
	logger  *slog.Logger
	schemas schemas

	mu            sync.Mutex
	svid          tls.Certificate
	authorization map[string]string // by value of the header
	state         state
	bound         map[string]string  // what the device of a client is called, see Quirks.BindsFirst
	pending       map[string]Pending // by fingerprint
	seen          map[string]int     // how often each signature came, the newest of them
	replayed      int
	changed       chan struct{} // closed and replaced at every change of the state
}

// New makes a WFM with the state kept in Options.File, or with none.
func New(o Options) (*Server, error) {
	switch {
	case o.svids() && (o.ID.Client != "" || o.ID.WFM == "" || o.ID.TrustDomain == ""):
		return nil, fmt.Errorf("cannot create WFM: %q is not the identity of a WFM", o.ID)
	case len(o.SVID.Certificate) == 0:
		return nil, errors.New("cannot create WFM: it has no certificate")
	case o.svids() && o.Bundle == nil:
		return nil, errors.New("cannot create WFM: it has no trust bundle")
	case o.Prefix != "" && (!strings.HasPrefix(o.Prefix, "/") || strings.HasSuffix(o.Prefix, "/")):
		return nil, fmt.Errorf("cannot create WFM: prefix %q has to begin with a slash and not to end with one", o.Prefix)
	}
	s := &Server{
		options:       o,
		logger:        o.Logger,
		svid:          o.SVID,
		authorization: maps.Clone(o.Authorization),
		bound:         map[string]string{},
		pending:       map[string]Pending{},
		seen:          map[string]int{},
		changed:       make(chan struct{}),
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	var err error
	if s.schemas, err = loadSchemas(o.Revision); err != nil {
		return nil, fmt.Errorf("cannot create WFM: %w", err)
	}
	if err := s.state.load(o.File, s.parseStatus); err != nil {
		return nil, fmt.Errorf("cannot create WFM: %w", err)
	}
	s.Server = serving.New(serving.Options{
		Handler: s.route,
		TLS:     s.tlsConfig(),
		Faults:  fault.Options{Answer: s.answerFault, Client: s.who},
		Record: record.Options{
			Header: []string{
				"Accept", "Accept-Encoding", "Content-Type", "If-None-Match", "User-Agent", "Range",
				"Content-Digest", "Signature-Input",
			},
			Client: s.who,
		},
	})
	return s, nil
}

// URL is the base URL that a client is configured with.
func (s *Server) URL() string { return "https://" + s.Address() + s.options.Prefix }

// Revision is what the WFM speaks.
func (s *Server) Revision() margo.Revision { return s.options.Revision }

// SetSVID changes the certificate that is presented from the next connection on.
func (s *Server) SetSVID(svid tls.Certificate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.svid = svid
}

// SetAuthorization changes what the gateway accepts, as a rotation of
// credentials does; see Options.
func (s *Server) SetAuthorization(clients map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.authorization = maps.Clone(clients)
}

// tell wakes everybody who waits for a change. The caller holds the lock.
func (s *Server) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// saved saves a change of the state and tells of it. The caller holds the lock.
func (s *Server) saved() error {
	s.tell()
	return s.state.save()
}
