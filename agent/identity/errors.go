package identity

import (
	"fmt"
	"time"
)

// Reason is why an identity cannot be used or a peer is not accepted.
type Reason string

// Reasons that lie in the device's own files.
const (
	Missing     Reason = "missing"      // a file is not there
	Unreadable  Reason = "unreadable"   // a file cannot be read, or is no plain file
	TooLarge    Reason = "too large"    // a file is larger than anything sensible
	Malformed   Reason = "malformed"    // a file does not hold what it should
	KeyMismatch Reason = "key mismatch" // certificate and key do not belong together
	NotClient   Reason = "not a client" // the certificate is not that of a WFM client
	KeyExposed  Reason = "key exposed"  // others than the owner can read the key (ID-25)
	UnfitKey    Reason = "unfit key"    // of a kind or size that cannot sign requests
	NoSecret    Reason = "no secret"    // a file holds no password or token
	NoBundle    Reason = "no bundle"    // there is no trust bundle yet (ID-28)

	Misconfigured Reason = "misconfigured" // what is configured beside the files cannot be
)

// Reasons that lie in a chain of certificates, the device's own or the peer's.
const (
	NoSVID           Reason = "no SVID"            // not exactly one SPIFFE ID
	OtherTrustDomain Reason = "other trust domain" // of another trust domain
	Untrusted        Reason = "untrusted"          // leads to no anchor of the bundle
	Expired          Reason = "expired"
	NotYetValid      Reason = "not yet valid"
	WeakKey          Reason = "weak key"    // RSA below 3072 bits
	NotALeaf         Reason = "not a leaf"  // may sign certificates itself
	OtherIdentity    Reason = "other party" // right domain, wrong party
)

// Unauthenticated is the reason that lies in a server of trust material: it did
// not prove to be the one that is configured (ID-14 ... ID-17).
const Unauthenticated Reason = "unauthenticated"

// Error is every error of this package that somebody can mend.
type Error struct {
	Reason Reason
	Object string // the file, or the peer as far as it is known
	Err    error
	// Floor is set where the device's clock is known to be wrong and its time
	// matters: the present is not before it.
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

// Mend says what to do about it, for people.
func (e *Error) Mend() string {
	switch e.Reason {
	case Missing:
		return "put the file in place, or correct its path in the configuration"
	case Unreadable:
		return "make it a regular file that margolite's user can read"
	case TooLarge, Malformed:
		return "replace the file: certificate and key are PEM, the trust bundle is a SPIFFE bundle (JWKS) or PEM"
	case KeyMismatch:
		return "install the private key that the certificate was issued for"
	case NotClient:
		return "have a certificate issued with the URI SAN spiffe://<trust domain>/margo/wfm/<wfm>/client/<client>"
	case KeyExposed:
		return "make the file readable by its owner only: chmod 600, or mount option umask=077 on a file system without modes"
	case NoSecret:
		return "put one line into the file: user:password, or a token"
	case UnfitKey:
		return "have a certificate issued for an ECDSA key (P-256 or P-384) or an RSA key of at least 2048 bits"
	case NoBundle:
		return "wait until the trust bundle has been fetched from the identity service, or install it as a file"
	case Misconfigured:
		return "correct wfm.ids: SPIFFE IDs of the device's own trust domain, as in the WFM's certificate"
	case Unauthenticated:
		return "compare wfm.identityService (ca, pins) with the certificate of the identity service; " +
			"no proxy on the way may intercept TLS"
	case OtherTrustDomain:
		return "correct wfm.url, or install certificate and trust bundle of the WFM's trust domain"
	case Untrusted:
		return "install the trust domain's current bundle; no proxy on the way to the WFM may intercept TLS"
	case Expired:
		if !e.Floor.IsZero() { // the lower bound of the present is past it, the truth all the more
			return "renew the certificate, and set this device's clock"
		}
		return "check this device's clock; if it is right, renew the certificate"
	case NotYetValid:
		if !e.Floor.IsZero() {
			return "set this device's clock, which is wrong; only then look at the certificate"
		}
		return "set this device's clock"
	case OtherIdentity:
		return "correct wfm.url, or install a certificate for the WFM found there"
	case NoSVID, WeakKey, NotALeaf:
		return "have the certificate issued again as an X.509-SVID"
	}
	return ""
}

func fault(reason Reason, object, format string, args ...any) *Error {
	return &Error{Reason: reason, Object: object, Err: fmt.Errorf(format, args...)}
}

// blameClock marks an error about validity where the device's clock is wrong.
func blameClock(e *Error, wrongClock func() (time.Time, bool)) *Error {
	if wrongClock == nil || e.Reason != NotYetValid && e.Reason != Expired {
		return e
	}
	if floor, wrong := wrongClock(); wrong {
		e.Floor = floor
	}
	return e
}
