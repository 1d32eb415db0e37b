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

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/fault"
)

// fail makes a *fault.Error of any error on the way to object, unless it names one of several images already or the caller
// gave up.
func fail(object string, err error) error {
	var known *fault.Error
	if err == nil || errors.As(err, &known) && known.Object != "" {
		return err
	}
	text := strings.TrimPrefix(err.Error(), object+": ") // *fault.Error says it
	if errors.Is(err, context.Canceled) {
		return told{err, object + ": " + withoutQueries(text)}
	}
	return &fault.Error{Code: codeOf(err), Object: object, Err: told{err, withoutQueries(hinted(text, err))}}
}

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

func bad(err error) error { return &fault.Error{Code: fault.InvalidPackage, Err: err} }

func garbled(err error) error { return &fault.Error{Code: fault.Garbled, Err: err} }

// remote marks errors not of this device. They may quote the registry, in one bounded line.
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

var errPlainHTTP = &fault.Error{Code: fault.Refused, Err: errors.New("plain HTTP is not configured for it")}

func codeOf(err error) fault.Code {
	var known *fault.Error
	switch {
	case errors.As(err, &known):
		return known.Code
	case fault.IsFull(err):
		return fault.NoSpace
	case errors.Is(err, containerd.ErrMemory):
		return fault.Unsupported
	case errors.Is(err, context.DeadlineExceeded) && !errors.As(err, new(remote)):
		return fault.Timeout
	case errors.Is(err, http.ErrSchemeMismatch):
		return fault.Refused
	case errdefs.IsFailedPrecondition(err): // containerd: the content differs from its descriptor
		return fault.Garbled
	case !errors.As(err, new(remote)) && !errors.Is(err, io.ErrUnexpectedEOF):
		return fault.Internal
	case errdefs.IsNotFound(err):
		return fault.NotFound
	case errors.Is(err, docker.ErrInvalidAuthorization), wantsCertificate(err):
		return fault.Denied
	default:
		return codeOfStatus(statusOf(err))
	}
}

// statusOf is the HTTP status that a registry refused a request with; 0: there is none.
func statusOf(err error) int {
	var status remoteserrors.ErrUnexpectedStatus
	errors.As(err, &status)
	return status.StatusCode
}

// wantsCertificate tells whether a server wants another client certificate. TLS alerts are untyped.
func wantsCertificate(err error) bool {
	var alert *net.OpError
	if !errors.As(err, &alert) || alert.Op != "remote error" {
		return false
	}
	return strings.Contains(alert.Err.Error(), "certificate")
}

func codeOfStatus(status int) fault.Code {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fault.Denied
	case http.StatusNotFound, http.StatusGone:
		return fault.NotFound
	default:
		return fault.Unreachable
	}
}
