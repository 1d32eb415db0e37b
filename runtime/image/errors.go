package image

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"unicode"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteserrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/registry"
)

// Kind says why an image or a package could not be had.
type Kind string

// The kinds of Error.
const (
	NotFound    Kind = "not found"   // the registry answered that it does not have it
	Unreachable Kind = "unreachable" // no answer, or the registry is in trouble: later may work
	Denied      Kind = "denied"      // credentials are missing or were not accepted
	Garbled     Kind = "garbled"     // what came has not the digest or the size it should have: later may work
	BadContent  Kind = "bad content" // wrong media type or form, as it was published
	NoPlatform  Kind = "no platform" // nothing in it for the wanted platform
	Unsupported Kind = "unsupported" // this device cannot unpack it
	NoSpace     Kind = "no space"    // it does not fit: a *NoSpaceError, or the disk was full
	Refused     Kind = "refused"     // the configuration of this device forbids it, such as plain HTTP
	Unsigned    Kind = "unsigned"    // it has to be signed, and has no signature that counts
	Local       Kind = "local"       // this device: its disk, its containerd, its files
)

// Error is the reason why one image or package could not be had.
type Error struct {
	Kind   Kind
	Object string // as it was asked for
	Err    error
}

func (e *Error) Error() string { return "cannot get " + e.Object + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// fail makes a *Error of any error on the way to object.
func fail(object string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		if e.Object != "" {
			return err // of one of several images, which it names
		}
		return &Error{Kind: e.Kind, Object: object, Err: told{e.Err, withoutQueries(e.Err.Error())}}
	}
	text := strings.TrimPrefix(err.Error(), object+": ") // *Error says it
	return &Error{Kind: kindOf(err), Object: object, Err: told{err, withoutQueries(hinted(text, err))}}
}

// told is an error with another text.
type told struct {
	error
	text string
}

func (t told) Error() string { return t.text }

func (t told) Unwrap() error { return t.error }

// hinted adds to the text of an error what the configuration could do about it.
func hinted(text string, err error) string {
	switch {
	case errors.Is(err, http.ErrSchemeMismatch), strings.Contains(text, "server gave HTTP response to HTTPS client"):
		return text + "; for plain HTTP set plainHTTP: true in its entry of registries"
	case errors.As(err, new(x509.UnknownAuthorityError)), errors.As(err, new(x509.HostnameError)):
		return text + "; for a private CA set ca in its entry of registries"
	case wantsCertificate(err):
		return text + "; it requires a client certificate: set certificate and key in its entry of registries"
	case errors.Is(err, docker.ErrInvalidAuthorization), statusOf(err) == http.StatusUnauthorized:
		return text + "; it may not exist, or its entry of registries needs other credentials"
	}
	return text
}

// withoutQueries hides the queries of URLs: registries redirect to storage with a token in the query.
func withoutQueries(text string) string {
	return regexp.MustCompile(`(://[^?\s"]*)\?[^\s"]*`).ReplaceAllString(text, "$1")
}

func bad(err error) error { return &Error{Kind: BadContent, Err: err} }

func garbled(err error) error { return &Error{Kind: Garbled, Err: err} }

// remote marks what came from a registry or from the way there, and not from this device. Its text may quote what the
// registry says, and thus is on one line and bounded.
type remote struct{ error }

const maxRemoteText = 2 << 10 // bytes

func (r remote) Error() string {
	text := strings.Join(strings.FieldsFunc(r.error.Error(), func(c rune) bool { return c != ' ' && !unicode.IsPrint(c) }), " ")
	if len(text) > maxRemoteText {
		text = strings.ToValidUTF8(text[:maxRemoteText], "") + "..."
	}
	return text
}

func (r remote) Unwrap() error { return r.error }

var errPlainHTTP = errors.New("plain HTTP is not configured for it")

func kindOf(err error) Kind {
	var known *Error
	switch {
	case errors.As(err, &known):
		return known.Kind
	case IsFull(err):
		return NoSpace
	case errors.Is(err, containerd.ErrMemory):
		return Unsupported
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Unreachable
	case errors.Is(err, errPlainHTTP), errors.Is(err, errOwnAddress), errors.Is(err, http.ErrSchemeMismatch):
		return Refused
	case errdefs.IsFailedPrecondition(err): // containerd: the content differs from its descriptor
		return Garbled
	case errors.Is(err, registry.ErrContent):
		return Garbled
	case errors.Is(err, registry.ErrOld):
		return BadContent
	case !errors.As(err, new(remote)) && !errors.Is(err, io.ErrUnexpectedEOF):
		return Local
	case errdefs.IsNotFound(err):
		return NotFound
	case errors.Is(err, docker.ErrInvalidAuthorization), wantsCertificate(err):
		return Denied
	default:
		return kindOfStatus(statusOf(err))
	}
}

// statusOf is the HTTP status that a registry refused a request with; 0: there is none.
func statusOf(err error) int {
	var status remoteserrors.ErrUnexpectedStatus
	errors.As(err, &status)
	return status.StatusCode
}

// wantsCertificate says that a server wants to see a certificate, or another one. The alerts of TLS have no type that
// could be asked for.
func wantsCertificate(err error) bool {
	var alert *net.OpError
	if !errors.As(err, &alert) || alert.Op != "remote error" {
		return false
	}
	return strings.Contains(alert.Err.Error(), "certificate")
}

// IsFull says that an error is one of a device without space.
func IsFull(err error) bool {
	var known *Error
	switch {
	case err == nil:
		return false
	case errors.As(err, &known) && known.Kind == NoSpace, errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return true
	}
	// From another containerd there come words only.
	return strings.Contains(err.Error(), unix.ENOSPC.Error()) || strings.Contains(err.Error(), unix.EDQUOT.Error())
}

func kindOfStatus(code int) Kind {
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return Denied
	case http.StatusNotFound, http.StatusGone:
		return NotFound
	default:
		return Unreachable
	}
}
