package identity

import (
	"fmt"
	"time"
)

// Reason is why an identity is unusable or a peer not accepted; its text says what to do.
type Reason string

// Reasons that lie in the device's own files.
const (
	Missing    Reason = "put the file in place, or correct its path in the configuration"
	Unreadable Reason = "make it a regular file that margolite's user can read"
	TooLarge   Reason = "replace the file: it is larger than any certificate, key or trust bundle"
	Malformed  Reason = "replace the file: certificate and key are PEM, the trust bundle is a SPIFFE bundle (JWKS) or PEM"
	// KeyMismatch: certificate and key do not belong together.
	KeyMismatch Reason = "install the private key that the certificate was issued for"
	// NotClient: the certificate is not that of a WFM client.
	NotClient Reason = "have a certificate issued with the URI SAN spiffe://<trust domain>/margo/wfm/<wfm>/client/<client>"
	// KeyExposed: others than the owner can read the key (ID-25).
	KeyExposed Reason = "make the file readable by its owner only: chmod 600, or mount option umask=077 on a file system without modes"
	// UnfitKey: of a kind or size that cannot sign requests.
	UnfitKey Reason = "have a certificate issued for an ECDSA key (P-256 or P-384) or an RSA key of at least 2048 bits"
	NoSecret Reason = "put one line into the file: user:password, or a token"
	// NoBundle: there is no trust bundle yet (ID-28).
	NoBundle Reason = "wait until the trust bundle has been fetched from the identity service, or install it as a file"
	// Misconfigured: the configuration contradicts the files.
	Misconfigured Reason = "correct wfm.ids: SPIFFE IDs of the device's own trust domain, as in the WFM's certificate"
)

// Reasons that lie in a chain of certificates, the device's own or the peer's.
const (
	// NoSVID: not exactly one SPIFFE ID.
	NoSVID           Reason = "have the certificate issued again as an X.509-SVID"
	OtherTrustDomain Reason = "correct wfm.url, or install certificate and trust bundle of the WFM's trust domain"
	// Untrusted: leads to no anchor of the bundle.
	Untrusted   Reason = "install the trust domain's current bundle; no proxy on the way to the WFM may intercept TLS"
	Expired     Reason = "check this device's clock; if it is right, renew the certificate"
	NotYetValid Reason = "set this device's clock"
	// WeakKey: RSA below 3072 bits.
	WeakKey Reason = "have the certificate issued again as an X.509-SVID, for an ECDSA key or an RSA key of at least 3072 bits"
	// NotALeaf: may sign certificates itself.
	NotALeaf Reason = "have the certificate issued again as an X.509-SVID, which may not sign certificates"
	// OtherIdentity: right trust domain, wrong party.
	OtherIdentity Reason = "correct wfm.url, or install a certificate for the WFM found there"
)

// Unauthenticated is the reason that lies in a server of trust material: it did
// not prove to be the one that is configured (ID-14 ... ID-17).
const Unauthenticated Reason = "compare wfm.identityService (ca, pins) with the certificate of the identity service; " +
	"no proxy on the way may intercept TLS"

// Error is an error that somebody can fix.
type Error struct {
	Reason Reason
	Object string // the file, or the peer as far as it is known
	Err    error
	// Floor is the lower bound of the present, if the clock is known to be wrong and matters.
	Floor time.Time
}

func (e *Error) Error() string {
	if !e.Floor.IsZero() {
		past := e.Floor.UTC().Format(time.RFC3339)
		return fmt.Sprintf("%s: %v; this device's clock is wrong, it is past %s", e.Object, e.Err, past)
	}
	return fmt.Sprintf("%s: %v", e.Object, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Mend tells people how to fix it. A wrong clock does not explain an expired certificate: the
// true time is later still than the clock's lower bound.
func (e *Error) Mend() string {
	switch {
	case e.Floor.IsZero():
		return string(e.Reason)
	case e.Reason == Expired:
		return "renew the certificate, and set this device's clock"
	}
	return "set this device's clock, which is wrong; only then look at the certificate"
}

func fault(reason Reason, object, format string, args ...any) *Error {
	return &Error{Reason: reason, Object: object, Err: fmt.Errorf(format, args...)}
}

// blameClock marks an error about validity if the device's clock is wrong.
func blameClock(e *Error, wrongClock func() (time.Time, bool)) *Error {
	if wrongClock == nil || e.Reason != NotYetValid && e.Reason != Expired {
		return e
	}
	if floor, wrong := wrongClock(); wrong {
		e.Floor = floor
	}
	return e
}
