package identity

import (
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const (
	// maxChain bounds the work that a peer can cause with its certificates.
	maxChain = 10
	// minRSA is the smallest RSA key accepted (ID-04).
	minRSA = 3072
	// skew is how far this device's clock may be behind that of an issuer
	// (ID-09). It never revives an expired certificate.
	skew = 5 * time.Minute
)

// authenticate checks an X.509-SVID, leaf first, and returns its ID. It follows the steps of the
// standard's identity profile in order; the error is of the first that fails. The last step,
// whether it is the expected party, is the caller's.
func (i *Identity) authenticate(chain []*x509.Certificate) (spiffeid.ID, *Error) {
	const unknown = "certificate"
	switch {
	case len(chain) == 0:
		return spiffeid.ID{}, fault(NoSVID, unknown, "the peer presented no certificate")
	case len(chain) > maxChain:
		return spiffeid.ID{}, fault(NoSVID, unknown, "the peer presented %d certificates; the limit is %d", len(chain), maxChain)
	}
	leaf := chain[0]

	// 1. One SPIFFE ID, of our trust domain (ID-05).
	if len(leaf.URIs) != 1 {
		return spiffeid.ID{}, fault(NoSVID, unknown, "has %d URI SANs; an SVID has exactly one", len(leaf.URIs))
	}
	id, err := spiffeid.FromURI(leaf.URIs[0])
	if err != nil {
		return spiffeid.ID{}, fault(NoSVID, unknown, "has a URI SAN that is not a SPIFFE ID: %w", err)
	}
	if id.Path() == "" {
		return spiffeid.ID{}, fault(NoSVID, id.String(), "names a trust domain only")
	}
	if id.TrustDomain() != i.id.TrustDomain() {
		return spiffeid.ID{}, fault(OtherTrustDomain, id.String(), "belongs to trust domain %q, expected %q", id.TrustDomain(), i.TrustDomain())
	}

	// 2. A chain to an anchor, through what was presented only (ID-08).
	if err := i.verifyChain(chain); err != nil {
		err.Object = id.String()
		return spiffeid.ID{}, err
	}

	// 3. The leaf signs nothing.
	if leaf.IsCA || leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 {
		return spiffeid.ID{}, fault(NotALeaf, id.String(), "the certificate may sign certificates or revocation lists; an SVID must not")
	}
	return id, nil
}

// verifyChain checks a chain at the present or, if the clock is known to be wrong, at a later
// time: a WFM's certificate is renewed every few days, and a device that lost its clock while
// offline would otherwise never learn the time from its WFM.
func (i *Identity) verifyChain(chain []*x509.Certificate) *Error {
	bundle := i.bundle.Load()
	if bundle == nil {
		return fault(NoBundle, "", "there is no trust bundle to verify the certificate") // ID-28
	}
	options := x509.VerifyOptions{
		Roots:         pool(bundle.Anchors),
		Intermediates: pool(chain[1:]),
		// SPIFFE leaves the extension to the issuer; the roles are told apart by the ID.
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	var chains [][]*x509.Certificate
	at, err := soonest(i.now(), skew, i.options.WrongClock, func(at time.Time) (err error) {
		options.CurrentTime = at
		chains, err = chain[0].Verify(options)
		return err
	})
	if err != nil {
		return blameClock(fault(reasonOf(err, at), "", "the certificate cannot be trusted: %w", err), i.options.WrongClock)
	}
	if !slices.ContainsFunc(chains, strong) {
		return fault(WeakKey, "", "the certificate chain has an RSA key of less than %d bits", minRSA)
	}
	return nil
}

// soonest verifies a chain at the present or, if it is not valid yet, at the first later time at
// which it is: within the skew, or any time if the clock is known to be wrong, since the chain
// was issued meanwhile. What ended before is expired by any clock.
func soonest(
	now time.Time, skew time.Duration, wrongClock func() (time.Time, bool), verify func(at time.Time) error,
) (at time.Time, err error) {
	for at = now; ; {
		err = verify(at)
		var early x509.CertificateInvalidError
		if !errors.As(err, &early) || early.Reason != x509.Expired || !early.Cert.NotBefore.After(at) {
			return at, err
		}
		wrong := false
		if wrongClock != nil {
			_, wrong = wrongClock()
		}
		if !wrong && early.Cert.NotBefore.Sub(now) > skew {
			return at, err
		}
		at = early.Cert.NotBefore // later each time
	}
}

func reasonOf(err error, at time.Time) Reason {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		if at.Before(invalid.Cert.NotBefore) {
			return NotYetValid
		}
		return Expired
	}
	return Untrusted
}

func strong(chain []*x509.Certificate) bool {
	return !slices.ContainsFunc(chain, func(c *x509.Certificate) bool {
		key, ok := c.PublicKey.(*rsa.PublicKey)
		return ok && key.N.BitLen() < minRSA
	})
}

func pool(certificates []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certificates {
		p.AddCert(c)
	}
	return p
}
