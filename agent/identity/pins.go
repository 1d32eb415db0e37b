package identity

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
)

// errUnpinned is the refusal of a chain that no pin fits.
var errUnpinned = errors.New("no key in its certificate chain is pinned")

// tls is the configuration for one connection to a host. The server proves
// itself by anchors and name, or by pins (ID-14); where neither succeeds there
// is no connection (ID-16).
func (s *Service) tls(host string) (*tls.Config, error) {
	config, err := ServerTLS(ServerOptions{CA: s.options.CA, TLS12: s.options.TLS12, Now: s.now})
	if err != nil {
		return nil, err
	}
	if len(s.pins) > 0 {
		anchors := config.RootCAs
		// The standard verification knows no pins. VerifyConnection takes its
		// place in full.
		config.InsecureSkipVerify = true
		config.VerifyConnection = func(state tls.ConnectionState) error {
			return s.verifyPinned(state.PeerCertificates, anchors, host)
		}
	}
	return config, nil
}

// verifyPinned checks that the presented leaf leads to a certificate whose key
// is pinned, or is that itself, all of them valid now. A name is checked only
// where one was connected to (RFC 9525).
func (s *Service) verifyPinned(presented []*x509.Certificate, anchors *x509.CertPool, host string) error {
	switch {
	case len(presented) == 0:
		return errUnpinned
	case len(presented) > maxChain:
		return fault(Unauthenticated, host, "presented %d certificates; the limit is %d", len(presented), maxChain)
	}
	options := x509.VerifyOptions{
		Roots:         anchors,
		Intermediates: pool(presented[1:]),
		CurrentTime:   s.now(),
	}
	if net.ParseIP(host) == nil {
		options.DNSName = host
	}
	// Whoever signed a pinned certificate does not matter: it is an anchor.
	var pinned []*x509.Certificate
	for _, c := range presented {
		if s.pinned(c) {
			pinned = append(pinned, c)
		}
	}
	if len(pinned) > 0 {
		direct := options
		direct.Roots = pool(pinned)
		_, err := presented[0].Verify(direct)
		return err
	}
	// A root that is pinned need not be presented.
	chains, err := presented[0].Verify(options)
	if err != nil {
		return errors.Join(errUnpinned, err)
	}
	for _, chain := range chains {
		if slices.ContainsFunc(chain, s.pinned) {
			return nil
		}
	}
	return errUnpinned
}

func (s *Service) pinned(c *x509.Certificate) bool {
	return s.pins[sha256.Sum256(c.RawSubjectPublicKeyInfo)]
}

// explain makes an *Error of what is wrong with the server's certificate; other
// errors stay as they are.
func (s *Service) explain(err error, host string) error {
	var (
		known     *Error
		invalid   x509.CertificateInvalidError
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		system    x509.SystemRootsError
		standard  *tls.CertificateVerificationError
	)
	switch {
	case errors.As(err, &known):
		return err
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		reason := reasonOf(err, s.now())
		known = fault(reason, host, "the certificate of the identity service is not valid now: %w", err)
		return blameClock(known, s.options.WrongClock)
	case errors.Is(err, errUnpinned), errors.As(err, &invalid), errors.As(err, &authority),
		errors.As(err, &name), errors.As(err, &system), errors.As(err, &standard):
		return fault(Unauthenticated, host, "the identity service is not the configured one: %w", err)
	}
	return err
}
