package identity

import "fmt"

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
	KeyExposed  Reason = "key exposed"  // others than the owner can read the key
	UnfitKey    Reason = "unfit key"    // of a kind or size that cannot sign requests
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

// Error is every error of this package that somebody can mend.
type Error struct {
	Reason Reason
	Object string // the file, or the peer as far as it is known
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Object, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

// Mend says what to do about it, for people.
func (e *Error) Mend() string {
	switch e.Reason {
	case Missing:
		return "put the file in place, or correct its path in the configuration"
	case Unreadable:
		return "make it a plain file that margolite's user can read"
	case TooLarge, Malformed:
		return "replace the file: certificate and key are PEM, the trust bundle is a SPIFFE bundle (JWKS) or PEM"
	case KeyMismatch:
		return "install the private key that the certificate was issued for"
	case NotClient:
		return "have a certificate issued with the URI SAN spiffe://<trust domain>/margo/wfm/<wfm>/client/<client>"
	case KeyExposed:
		return "make the key readable for its owner only: chmod 600"
	case UnfitKey:
		return "have a certificate issued for an ECDSA key (P-256 or P-384) or an RSA key of at least 2048 bits"
	case OtherTrustDomain:
		return "correct wfm.url, or install certificate and trust bundle of the WFM's trust domain"
	case Untrusted:
		return "install the trust domain's current bundle; a proxy that opens TLS cannot be on the way to the WFM"
	case Expired:
		return "check this device's clock; if it is right, the certificate must be renewed"
	case NotYetValid:
		return "set this device's clock"
	case OtherIdentity:
		return "correct wfm.url, or install a certificate for the WFM found there"
	case NoSVID, WeakKey, NotALeaf:
		return "the certificate must be issued again as an X.509-SVID"
	}
	return ""
}

func fault(reason Reason, object, format string, args ...any) *Error {
	return &Error{Reason: reason, Object: object, Err: fmt.Errorf(format, args...)}
}
