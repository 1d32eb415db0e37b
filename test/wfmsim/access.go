package wfmsim

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim/signature"
)

func (s *Server) tlsConfig() *tls.Config {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,     // ID-10, AUTH-03
		NextProtos: []string{"http/1.1"}, // ID-11
		// Each connection is a full handshake (ID-13).
		SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			svid := s.svid
			return &svid, nil
		},
	}
	if s.options.svids() {
		// The standard verification wants an extended key usage and knows
		// nothing of SPIFFE; verifyClient takes its place in full.
		config.ClientAuth = tls.RequireAnyClientCert
		config.VerifyConnection = s.verifyClient
	}
	return config
}

func (s *Server) verifyClient(connection tls.ConnectionState) error {
	_, err := pki.VerifyClient(connection.PeerCertificates, s.options.Bundle, s.options.ID.TrustDomain, time.Now())
	return err
}

// who is the client that a request seems to come from: for the record and for
// faults, which decide nothing that matters.
func (s *Server) who(r *http.Request) string {
	switch {
	case s.options.svids():
		return claimed(r).Client
	case s.options.Revision == margo.RC3:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.authorization[r.Header.Get("Authorization")]
	}
	return s.find(s.path(r)).client
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

// authorize decides for each request who asks, because certificates, anchors
// and policy change under a connection that stays (ID-12).
func (s *Server) authorize(r *http.Request, at place) (client string, refusal *problem) {
	client, refusal = s.passGateway(r)
	switch {
	case refusal != nil:
		return "", refusal
	case s.options.Revision != margo.RC3:
		return s.authenticate(r, at)
	case s.options.svids():
		if client, refusal = s.recognise(r); refusal != nil {
			return "", refusal
		}
	}
	if s.options.Clients != nil && !slices.Contains(s.options.Clients, client) {
		return "", notAuthorized("Not Authorized", "Client "+client+" is not on the list of accepted clients.")
	}
	return client, nil
}

// passGateway demands the credentials of a gateway, where one is there.
func (s *Server) passGateway(r *http.Request) (client string, refusal *problem) {
	if s.options.Authorization == nil {
		return "", nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	values := r.Header.Values("Authorization")
	if len(values) == 1 {
		if client, ok := s.authorization[values[0]]; ok {
			return client, nil
		}
	}
	p := blank(http.StatusUnauthorized, "This gateway wants credentials.")
	p.gateway = true
	return "", p
}

// recognise takes the client from its X.509-SVID (RC3).
func (s *Server) recognise(r *http.Request) (client string, refusal *problem) {
	id := claimed(r)
	switch {
	case r.TLS == nil || s.verifyClient(*r.TLS) != nil:
		return "", notAuthorized("Not Authorized", "The client's X.509-SVID is no longer valid.")
	case id.Server() != s.options.ID:
		return "", notAuthorized("Not Authorized", id.String()+" is not a client of "+s.options.ID.String()+".")
	}
	return id.Client, nil
}

// authenticate takes the client from the path and verifies the signature of the
// request with the certificate that it was onboarded with (before RC3).
func (s *Server) authenticate(r *http.Request, at place) (client string, refusal *problem) {
	if at.client == "" {
		return "", nil // the root is there for everybody, and onboarding brings its own certificate
	}
	body, refusal := readBody(r)
	if refusal != nil {
		return "", refusal
	}
	certificate, refusal := s.certificate(at.client)
	if refusal != nil {
		return "", refusal
	}
	if refusal := s.verify(r, body, certificate); refusal != nil {
		return "", refusal
	}
	return at.client, nil
}

// readBody reads all of a body and leaves it to be read again.
func readBody(r *http.Request) ([]byte, *problem) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, blank(http.StatusBadRequest, fmt.Sprintf("The body cannot be read: %v.", err))
	case len(body) > maxBody:
		return nil, blank(http.StatusRequestEntityTooLarge, fmt.Sprintf("The body is larger than %d bytes.", maxBody))
	case len(body) > 0 && (r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodDelete):
		return nil, invalid(r.Method + " has no body (A-57).")
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// verify checks the signature of a request, and counts it where it was seen
// before: the standard forbids old ones, not the same one twice.
func (s *Server) verify(r *http.Request, body []byte, certificate *x509.Certificate) *problem {
	err := signature.Verify(r, body, certificate.PublicKey, time.Now())
	switch {
	case errors.Is(err, signature.ErrDigest):
		return &problem{status: http.StatusBadRequest, title: "Invalid content-digest", detail: err.Error()}
	case err != nil:
		return &problem{status: http.StatusUnauthorized, title: "Invalid signature", detail: err.Error()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) >= maxSeen {
		clear(s.seen)
	}
	shown := r.Header.Get("Signature")
	if s.seen[shown]++; s.seen[shown] > 1 {
		s.replayed++
	}
	return nil
}

// maxSeen bounds the signatures remembered.
const maxSeen = 1 << 16

// Replayed is how many requests came with a signature that had come before.
func (s *Server) Replayed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replayed
}
