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

// Policy is what Verify asks of a chain.
type Policy struct {
	Bundle      *TrustBundle
	TrustDomain string
	Role        Role
	ID          string    // exactly this SPIFFE ID; empty: any of the role
	At          time.Time // the present
}

// Verify checks the X.509-SVID of a peer, leaf first, and tells who it is. The
// steps and their order are those of the standard's identity profile; the
// error is an *Error for the first that fails.
func Verify(chain []*x509.Certificate, p Policy) (ID, error) {
	const unknown = "certificate"
	switch {
	case len(chain) == 0:
		return ID{}, fault(NoSVID, unknown, "the peer presented none")
	case len(chain) > maxChain:
		return ID{}, fault(NoSVID, unknown, "the peer presented %d, at most %d are allowed", len(chain), maxChain)
	}
	leaf := chain[0]

	// 1. One SPIFFE ID, of our trust domain (ID-05).
	if len(leaf.URIs) != 1 {
		return ID{}, fault(NoSVID, unknown, "has %d URI SANs, an SVID has exactly one", len(leaf.URIs))
	}
	uri, err := spiffeid.FromURI(leaf.URIs[0])
	if err != nil {
		return ID{}, fault(NoSVID, unknown, "has a URI SAN that is not a SPIFFE ID: %w", err)
	}
	if domain := uri.TrustDomain().Name(); domain != p.TrustDomain {
		return ID{}, fault(OtherTrustDomain, uri.String(), "is of trust domain %q, want %q", domain, p.TrustDomain)
	}

	// 2. A chain to an anchor, through what was presented only (ID-08).
	if err := verifyChain(chain, p); err != nil {
		err.Object = uri.String()
		return ID{}, err
	}

	// 3. The leaf signs nothing.
	if leaf.IsCA || leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 {
		return ID{}, fault(NotALeaf, uri.String(), "the certificate may sign certificates or revocation lists, an SVID must not")
	}

	// 4. The very party that is wanted (ID-06).
	id, err := ParseSPIFFEID(uri.String())
	if err != nil {
		return ID{}, fault(OtherIdentity, uri.String(), "is not the ID of a %s: %w", p.Role, err)
	}
	if id.Role() != p.Role {
		return ID{}, fault(OtherIdentity, uri.String(), "is a %s, want a %s", id.Role(), p.Role)
	}
	if p.ID != "" && id.String() != p.ID {
		return ID{}, fault(OtherIdentity, uri.String(), "is not the %s wanted here, which is %s", p.Role, p.ID)
	}
	return id, nil
}

func verifyChain(chain []*x509.Certificate, p Policy) *Error {
	if p.Bundle == nil || len(p.Bundle.Anchors) == 0 {
		return fault(Untrusted, "", "there is no trust bundle to check against") // ID-28
	}
	options := x509.VerifyOptions{
		Roots:         pool(p.Bundle.Anchors),
		Intermediates: pool(chain[1:]),
		// SPIFFE leaves the extension to the issuer; the roles are told apart by the ID.
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		CurrentTime: p.At,
	}
	chains, err := chain[0].Verify(options)
	reason := reasonOf(err, p.At)
	if reason == NotYetValid {
		options.CurrentTime = p.At.Add(skew)
		if later, retried := chain[0].Verify(options); retried == nil {
			chains, err = later, nil
		}
	}
	if err != nil {
		return fault(reason, "", "the certificate cannot be trusted: %w", err)
	}
	if !slices.ContainsFunc(chains, strong) {
		return fault(WeakKey, "", "the certificate rests on an RSA key of less than %d bits", minRSA)
	}
	return nil
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
