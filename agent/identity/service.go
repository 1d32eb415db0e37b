package identity

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/margolite/margolite/agent/margo"
)

const (
	defaultServiceTimeout = time.Minute
	maxServiceHeader      = 64 << 10
)

// ServiceOptions say where the Margo Identity Service is and how it proves
// itself.
type ServiceOptions struct {
	// Discovery is the https URL of the discovery document; empty: there is none.
	Discovery string
	// Bundle is the https URL of the trust bundle, for where there is no
	// discovery document (ID-18).
	Bundle string

	// CA is a PEM file with the anchors that the certificates of the service
	// lead to; empty: the system's. It is read for each request.
	CA string
	// Pins are base64 SHA-256 digests of SubjectPublicKeyInfo in DER. With pins
	// a connection is good if the service's certificate leads to one whose key is
	// pinned, or is that itself, whoever signed it; anchors serve only to find
	// such a certificate where the service does not present it.
	Pins []string
	// TLS12 allows TLS 1.2 beside 1.3 (ID-10).
	TLS12 bool

	Timeout time.Duration // of one request as a whole; 0: a minute
	// Now and WrongClock are those of Options.
	Now        func() time.Time
	WrongClock func() (floor time.Time, wrong bool)
}

// Service is a client of the Margo Identity Service, which publishes the trust
// bundle of a trust domain. Each request authenticates the server anew and in
// the same way, whichever origin it is on (ID-17); the trust bundle has no say
// in that, the device's certificate is not shown, and no redirect is followed.
// It is safe for concurrent use.
type Service struct {
	options ServiceOptions
	pins    map[[sha256.Size]byte]bool
	now     func() time.Time

	discovery atomic.Pointer[Fetched] // the last good document; nil: none yet
}

// NewService checks the options; nothing is sent yet.
func NewService(o ServiceOptions) (*Service, error) {
	if o.Discovery == "" && o.Bundle == "" {
		return nil, errors.New("cannot fetch a trust bundle without the URL of a discovery document or of the bundle")
	}
	for _, location := range []struct{ of, url string }{{"discovery document", o.Discovery}, {"trust bundle", o.Bundle}} {
		if location.url == "" {
			continue
		}
		if _, err := httpsURL(location.url); err != nil {
			return nil, fmt.Errorf("cannot use URL of %s: %w", location.of, err)
		}
	}
	s := &Service{options: o, pins: make(map[[sha256.Size]byte]bool, len(o.Pins)), now: o.Now}
	for _, pin := range o.Pins {
		sum, err := base64.StdEncoding.DecodeString(pin)
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("cannot use pin %.80q: expected the SHA-256 digest of a SubjectPublicKeyInfo in base64", pin)
		}
		s.pins[[sha256.Size]byte(sum)] = true
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.options.Timeout <= 0 {
		s.options.Timeout = defaultServiceTimeout
	}
	return s, nil
}

// httpsURL reads an absolute https URL that names no secret.
func httpsURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, errors.Unwrap(err) // the rest repeats the URL, with any password
	case u.Scheme != "https" || u.Opaque != "" || u.Hostname() == "":
		return nil, fmt.Errorf("%q is not https://<host>", u.Redacted())
	case u.User != nil || u.Fragment != "":
		return nil, fmt.Errorf("%q has a user or a fragment", u.Redacted())
	}
	return u, nil
}

// Fetched is a trust bundle, or the discovery document, as the service sent it.
type Fetched struct {
	Data []byte `json:"bundle"`         // its exact bytes
	URL  string `json:"url"`            // that it came from
	ETag string `json:"etag,omitempty"` // of the answer, "" if it had none
}

// Bundle fetches the trust bundle of a trust domain. Where the service says
// that the known one is still the present one, that is returned. Errors are
// *ServiceError for an answer that is no success, *Error for what somebody can
// mend, and those of the connection.
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
	var refused *ServiceError
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusNotFound && s.options.Bundle != "":
		return s.options.Bundle, nil
	case err != nil:
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

// ServiceError is an answer of the identity service that is no success.
type ServiceError struct {
	Op         string // what was tried, e.g. "get trust bundle"
	Status     int    // of the HTTP answer
	Problem    margo.ProblemDetail
	RetryAfter time.Duration // not to be tried again before; 0: nothing said
	Location   string        // where a redirect leads, which is not followed
}

func (e *ServiceError) Error() string {
	return e.Problem.Describe(e.Op, "the identity service", e.Status, e.Location)
}

// get makes one request over a connection of its own: requests are
// days apart, and one must not rely on the other's connection. What is known comes
// from the URL; it is returned where the service says that it has not changed.
func (s *Service) get(ctx context.Context, op string, known Fetched, limit int64) (Fetched, error) {
	u, err := httpsURL(known.URL)
	if err != nil {
		return Fetched{}, fmt.Errorf("cannot %s: %w", op, err)
	}
	config, err := s.tls(u.Hostname())
	if err != nil {
		return Fetched{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, known.URL, nil)
	if err != nil {
		return Fetched{}, fmt.Errorf("cannot %s: %w", op, err)
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "margolite")
	conditional := margo.UsableETag(known.ETag) // a kept one may be damaged
	if conditional {
		request.Header.Set("If-None-Match", known.ETag)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // ID-11, A-44
	transport := &http.Transport{
		DialContext:            (&net.Dialer{}).DialContext,
		TLSClientConfig:        config,
		Protocols:              protocols,
		DisableKeepAlives:      true,
		DisableCompression:     true, // it would have no bounds
		MaxResponseHeaderBytes: maxServiceHeader,
	}
	defer transport.CloseIdleConnections()
	// Not an http.Client: there are no cookies here, and a redirect is an answer
	// like any other that is no success.
	response, err := transport.RoundTrip(request)
	if err != nil {
		return Fetched{}, fmt.Errorf("cannot %s: %w", op, s.explain(&peerError{err}, u.Hostname()))
	}
	defer response.Body.Close()

	switch {
	case response.StatusCode == http.StatusNotModified && conditional:
		return known, nil
	case response.StatusCode != http.StatusOK:
		return Fetched{}, s.refusal(op, response)
	}
	if encoding := response.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return Fetched{}, fmt.Errorf("cannot %s: the answer has Content-Encoding %.40q, which was not requested", op, encoding)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err == nil {
		// A server that notices that the client is leaving may end the body in
		// good order while the connection is being closed.
		err = ctx.Err()
	}
	switch {
	case err != nil:
		return Fetched{}, fmt.Errorf("cannot %s: %w", op, &peerError{err})
	case int64(len(body)) > limit:
		return Fetched{}, fault(TooLarge, op, "the answer is larger than %d bytes", limit)
	}
	answer := Fetched{Data: body, URL: known.URL}
	if etag := response.Header.Get("ETag"); margo.UsableETag(etag) {
		answer.ETag = etag
	}
	return answer, nil
}

const maxCause = 512

// peerError is an error whose text may repeat what a server sent, or has in its
// certificate before anybody believes it.
type peerError struct{ err error }

func (e *peerError) Error() string { return margo.Shown(e.err.Error(), maxCause) }

func (e *peerError) Unwrap() error { return e.err }

// refusal makes the most of an answer that is no success.
func (s *Service) refusal(op string, response *http.Response) *ServiceError {
	e := &ServiceError{Op: op, Status: response.StatusCode}
	if e.Status >= 300 && e.Status <= 399 {
		e.Location = response.Header.Get("Location")
	}
	// What cannot be read is not needed: the status decides.
	body, _ := io.ReadAll(io.LimitReader(response.Body, margo.MaxProblemBytes))
	e.Problem = margo.ParseProblem(response.Header.Get("Content-Type"), e.Status, body)
	e.RetryAfter = margo.RetryAfter(response.Header, e.Problem, s.now())
	return e
}
