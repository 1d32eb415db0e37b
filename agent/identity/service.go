package identity

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/margolite/margolite/agent/margo"
)

// ServiceOptions say where the Margo Identity Service is and how it proves itself.
type ServiceOptions struct {
	// Discovery is the https URL of the discovery document; empty: there is none.
	Discovery string
	// Bundle is the https URL of the trust bundle if there is no discovery document (ID-18).
	Bundle string

	// CA is a PEM file of the service's anchors, read for each request; empty: the system's.
	CA string
	// Pins are base64 SHA-256 digests of SubjectPublicKeyInfo in DER. With pins, the service's
	// certificate or one that it leads to must have a pinned key, whoever signed it; anchors only
	// help to find such a certificate if the service does not present it.
	Pins []string
	// TLS12 allows TLS 1.2 beside 1.3 (ID-10).
	TLS12 bool

	// Get fetches the document at the URL of the known one, which it returns if unchanged, over a
	// connection of its own. See wfm.Get.
	Get func(ctx context.Context, config *tls.Config, op string, known Fetched, limit int64) (Fetched, error)
	// Now and WrongClock are those of Options.
	Now        func() time.Time
	WrongClock func() (floor time.Time, wrong bool)
}

// Service is a client of the Margo Identity Service, which publishes the trust bundle of a trust
// domain. Each request authenticates the server in the same way on any origin (ID-17), without
// the trust bundle; the device shows no certificate, and follows no redirect. It is safe for
// concurrent use.
type Service struct {
	options ServiceOptions
	pins    map[[sha256.Size]byte]bool

	discovery atomic.Pointer[Fetched] // the last good document; nil: none yet
}

// NewService makes a client without sending anything. URLs are checked with each request.
func NewService(o ServiceOptions) (*Service, error) {
	s := &Service{options: o, pins: make(map[[sha256.Size]byte]bool, len(o.Pins))}
	for _, pin := range o.Pins {
		sum, err := base64.StdEncoding.DecodeString(pin)
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("cannot use pin %.80q: expected the SHA-256 digest of a SubjectPublicKeyInfo in base64", pin)
		}
		s.pins[[sha256.Size]byte(sum)] = true
	}
	if s.options.Now == nil {
		s.options.Now = time.Now
	}
	return s, nil
}

// answered is Get's error for an answer that is no success, as *wfm.Error is: the problem, and
// how long not to ask again; 0: nothing is said.
type answered interface {
	error
	Answer() (problem margo.ProblemDetail, after time.Duration)
}

// Fetched is a trust bundle, or the discovery document, as the service sent it.
type Fetched struct {
	Data []byte `json:"bundle"`         // its exact bytes
	URL  string `json:"url"`            // that it came from
	ETag string `json:"etag,omitempty"` // of the answer, "" if it had none
}

// Bundle fetches the trust bundle of a trust domain, or returns the known one if it has not
// changed. Errors are *Error if something can be done about them, else those of Get.
func (s *Service) Bundle(ctx context.Context, trustDomain string, known Fetched) (Fetched, error) {
	location, err := s.locate(ctx, trustDomain)
	if err != nil {
		return Fetched{}, err
	}
	if known.URL != location || len(known.Data) == 0 {
		known = Fetched{URL: location}
	}
	return s.get(ctx, "get trust bundle", known, maxBundleSize)
}

// locate finds out where the trust bundle is (ID-18).
func (s *Service) locate(ctx context.Context, trustDomain string) (string, error) {
	if s.options.Discovery == "" {
		return s.options.Bundle, nil
	}
	known := Fetched{URL: s.options.Discovery}
	if last := s.discovery.Load(); last != nil {
		known = *last
	}
	answer, err := s.get(ctx, "get discovery document", known, margo.MaxDiscoveryBytes)
	if err != nil {
		var refused answered
		if errors.As(err, &refused) && s.options.Bundle != "" {
			if problem, _ := refused.Answer(); problem.Status == http.StatusNotFound {
				return s.options.Bundle, nil
			}
		}
		return "", err
	}
	document, err := margo.ParseDiscoveryDocument(answer.Data)
	if err != nil {
		return "", err
	}
	s.discovery.Store(&answer)
	if document.TrustDomain != trustDomain {
		return "", fault(OtherTrustDomain, "discovery document",
			"belongs to trust domain %.200q, the device to %q", document.TrustDomain, trustDomain)
	}
	return document.TrustBundleURI, nil
}

// get requests the URL of the known document, which it returns if that has not changed.
func (s *Service) get(ctx context.Context, op string, known Fetched, limit int64) (Fetched, error) {
	u, err := margo.HTTPS(known.URL)
	if err != nil {
		return Fetched{}, fmt.Errorf("cannot %s: %w", op, err)
	}
	config, err := ServerTLS(ServerOptions{CA: s.options.CA, TLS12: s.options.TLS12, Now: s.options.Now, Name: u.Hostname(), pins: s.pins})
	if err != nil {
		return Fetched{}, err
	}
	answer, err := s.options.Get(ctx, config, op, known, limit)
	var refused *tls.CertificateVerificationError
	if !errors.As(err, &refused) {
		return answer, err
	}
	if reason := reasonOf(err, s.options.Now()); reason != Untrusted {
		known := fault(reason, u.Hostname(), "the certificate of the identity service is not valid now: %w", err)
		return Fetched{}, blameClock(known, s.options.WrongClock)
	}
	return Fetched{}, fault(Unauthenticated, u.Hostname(), "the identity service is not the configured one: %w", err)
}
