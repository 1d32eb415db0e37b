package notation

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// ErrEarly says that a certificate is not valid yet, or that the clock is wrong.
var ErrEarly = errors.New("by this device's clock it is not valid yet")

// Verifier verifies signatures of artifacts in one repository.
type Verifier struct {
	policy *policy
	roots  *x509.CertPool
	lists  []*x509.RevocationList
	now    time.Time
	log    *slog.Logger
}

// Open reads the configuration in dir for a repository; nil: no trust policy applies.
func Open(dir, repository string, now time.Time, log *slog.Logger) (*Verifier, error) {
	d, err := readDocument(dir)
	if err != nil {
		return nil, err
	}
	v := &Verifier{policy: d.applicable(repository), now: now, log: log}
	if v.policy == nil {
		return nil, nil
	}
	if v.roots, err = readRoots(dir, v.policy); err != nil {
		return nil, err
	}
	v.lists, err = readLists(dir)
	return v, err
}

// Verify returns the signer of an artifact, given the payload of a layer of JWSType or COSEType.
// The error says why the signature does not count.
func (v *Verifier) Verify(layer v1.Descriptor, payload []byte, artifact digest.Digest) (signer string, err error) {
	if !v.policy.enforces(authenticity) {
		return "", fmt.Errorf("trust policy %s does not enforce authenticity", v.policy.Name)
	}
	e, err := parse(layer.MediaType, payload)
	if err != nil {
		return "", fmt.Errorf("cannot read it: %w", err)
	}
	if err := e.header.check(); err != nil {
		return "", err
	}
	if err := e.intact(); err != nil {
		return "", err
	}
	if signed, err := e.artifact(); err != nil || signed != artifact {
		return "", errors.New("it is for another artifact")
	}
	if at := e.header.Expiry; !at.IsZero() && !v.now.Before(at) {
		if err := v.enforce(expiry, fmt.Errorf("it expired on %s", date(at))); err != nil {
			return "", err
		}
	}
	chains, err := v.authentic(e.chain)
	if err != nil {
		return "", err
	}
	for _, chain := range chains {
		if err := v.enforce(revocation, v.revoked(chain)); err != nil {
			return "", err
		}
	}
	return e.chain[0].Subject.String(), nil
}

// enforce returns err if the policy enforces the failed check, and otherwise logs it unless skipped.
func (v *Verifier) enforce(check string, err error) error {
	if err == nil || v.policy.enforces(check) {
		return err
	}
	if v.policy.Verification.Override[check] != "skip" {
		v.log.Warn("check of signature failed that the trust policy does not enforce", "policy", v.policy.Name, "check", check, "error", err)
	}
	return nil
}

// authentic finds the chains from the signer's certificate, the first one, to trusted ones.
func (v *Verifier) authentic(came []*x509.Certificate) (chains [][]*x509.Certificate, err error) {
	signer := came[0]
	o := x509.VerifyOptions{Roots: v.roots, Intermediates: x509.NewCertPool(), CurrentTime: v.now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}}
	for _, c := range came {
		if c.NotBefore.After(v.now) {
			return nil, fmt.Errorf("certificate %s of %s: %w", c.Subject, date(c.NotBefore), ErrEarly)
		}
		if c.NotAfter.Before(o.CurrentTime) {
			o.CurrentTime, err = c.NotAfter, fmt.Errorf("certificate %s expired on %s", c.Subject, date(c.NotAfter))
		}
		o.Intermediates.AddCert(c)
	}
	if err := v.enforce(authenticTimestamp, err); err != nil {
		return nil, err
	}
	others := []x509.ExtKeyUsage{
		x509.ExtKeyUsageAny, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth,
		x509.ExtKeyUsageEmailProtection, x509.ExtKeyUsageTimeStamping, x509.ExtKeyUsageOCSPSigning,
	}
	other := slices.ContainsFunc(signer.ExtKeyUsage, func(u x509.ExtKeyUsage) bool { return slices.Contains(others, u) })
	if signer.IsCA || other || signer.KeyUsage&^x509.KeyUsageContentCommitment != x509.KeyUsageDigitalSignature {
		return nil, fmt.Errorf("certificate %s is not for signing code", signer.Subject)
	}
	if chains, err = signer.Verify(o); err != nil {
		return nil, fmt.Errorf("certificate %s does not lead to %s: %w", signer.Subject, strings.Join(v.policy.Stores, " or "), err)
	}
	if len(v.policy.trusted) > 0 {
		name, err := parseSubject(signer.Subject.String())
		if err != nil || !slices.ContainsFunc(v.policy.trusted, func(s subject) bool { return s.covers(name) }) {
			return nil, fmt.Errorf("%s is not a trusted identity of trust policy %s", signer.Subject, v.policy.Name)
		}
	}
	return chains, nil
}

// revoked says which certificate of a chain was revoked, or that this is unknown. A list with
// critical extensions, such as a delta list, does not prove the absence of a revocation.
func (v *Verifier) revoked(chain []*x509.Certificate) error {
	const removed = 8 // of the reasons: revoked no more
	for n, c := range chain[:len(chain)-1] {
		asked, current := len(c.CRLDistributionPoints)+len(c.OCSPServer) > 0, false
		for _, l := range v.lists {
			if !bytes.Equal(l.RawIssuer, chain[n+1].RawSubject) || l.CheckSignatureFrom(chain[n+1]) != nil {
				continue
			}
			for _, r := range l.RevokedCertificateEntries {
				if r.SerialNumber.Cmp(c.SerialNumber) == 0 && r.ReasonCode != removed {
					return fmt.Errorf("certificate %s was revoked on %s", c.Subject, date(r.RevocationTime))
				}
			}
			partial := slices.ContainsFunc(l.Extensions, func(e pkix.Extension) bool { return e.Critical })
			asked, current = true, current || !partial && v.now.Before(l.NextUpdate)
		}
		if asked && !current {
			return fmt.Errorf("certificate %s may be revoked: there is no current revocation list of %s", c.Subject, c.Issuer)
		}
	}
	return nil
}

func date(t time.Time) string { return t.UTC().Format(time.RFC3339) }
