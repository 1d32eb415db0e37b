package wfm

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/margolite/margolite/agent/margo"
)

// ErrNotModified is the answer to a poll that brings nothing new (DS-05).
var ErrNotModified = errors.New("the state manifest has not changed")

// Reasons why the WFM's content cannot be used.
var (
	// ErrSuperseded: no document with this digest. It does not affect the deployment (DS-14); a
	// newer manifest probably exists and should be fetched without an ETag.
	ErrSuperseded = errors.New("no longer available; a newer state manifest may exist")
	// ErrDigestMismatch: the bytes are not those that the manifest names (DS-18).
	ErrDigestMismatch = errors.New("content does not match its digest")
	// ErrTooLarge: the content is larger than the device can take.
	ErrTooLarge = errors.New("content is larger than its limit")
	// ErrBundle: the bundle is broken, or does not hold exactly the manifest's documents (DS-16).
	ErrBundle = errors.New("bundle is invalid")
	// ErrContentType: the answer to a poll is no state manifest.
	ErrContentType = errors.New("answer is not a state manifest")

	// ErrClientUnknown: the WFM does not know the client id (any more): onboard the client again.
	ErrClientUnknown = errors.New("the WFM does not know this client's id")
	// ErrUnauthenticated: the WFM does not accept the signature, or a gateway the credentials.
	// Repeating the request does not help.
	ErrUnauthenticated = errors.New("check this device's clock and its key or credentials")

	errPage     = errors.New("a captive portal answered instead of the WFM")
	errEncoding = errors.New("cannot decode the content encoding")
)

// Error is an unsuccessful answer of the WFM or the identity service.
type Error struct {
	Op         string // what was tried, e.g. "get state manifest"
	Who        string // answered; empty: the WFM
	Status     int    // of the HTTP answer
	Problem    margo.ProblemDetail
	RetryAfter time.Duration // least time before a retry; 0: nothing said
	Location   string        // the target of a redirect, which is not followed
	Page       bool          // a page for people, possibly a proxy's

	meaning  error         // a sentinel of this package, or nil
	patience time.Duration // least time before a retry makes sense, whatever the WFM asked for
}

// statusOf is the status of the answer in an error; 0: none.
func statusOf(err error) int {
	var refused *Error
	if !errors.As(err, &refused) {
		return 0
	}
	return refused.Status
}

// Unwrap gives the sentinel error that an answer amounts to, if any.
func (e *Error) Unwrap() error { return e.meaning }

// Answer is the problem, and how long not to ask again; 0: nothing is said.
func (e *Error) Answer() (margo.ProblemDetail, time.Duration) { return e.Problem, e.RetryAfter }

func (e *Error) Error() string {
	text := e.Problem.Describe(e.Op, cmp.Or(e.Who, "the WFM"), e.Status, e.Location)
	if e.meaning != nil {
		text += "; " + e.meaning.Error()
	}
	return text
}

// connectionError is whatever kept an answer from arriving.
type connectionError struct {
	op  string
	err error
}

// maxCause bounds the text of a failure, which can repeat what the server sent or has in its
// certificate before that is trusted.
const maxCause = 512

func (e *connectionError) Error() string {
	return "cannot " + e.op + ": " + margo.Shown(e.err.Error(), maxCause)
}

func (e *connectionError) Unwrap() error { return e.err }

// Retry tells whether to repeat what failed with an error of this package, and how long to wait
// at least; the caller's own back-off is added unless the answer says "fixed" (ERR-04 ...
// ERR-06). Regular polling goes on even if a request is not to be repeated.
func Retry(err error) (retryable bool, after time.Duration) {
	retryable, after, _ = advice(err)
	return retryable, after
}

// Silence is how long the WFM asked not to be called in the answer that err holds; 0: it did not.
// A delay before a retry is another matter.
func Silence(err error) (asked time.Duration) {
	_, _, asked = advice(err)
	return asked
}

func advice(err error) (retryable bool, after, asked time.Duration) {
	switch e := err.(type) {
	case *Error:
		return e.Problem.Retryable, max(e.RetryAfter, e.patience), e.RetryAfter
	case *connectionError:
		return !errors.Is(e, context.Canceled), 0, 0
	case interface{ Retry() (bool, time.Duration) }: // of another way to the desired state
		retryable, after = e.Retry()
	case interface{ Unwrap() []error }: // several ways were tried
		for _, part := range e.Unwrap() {
			again, wait, silence := advice(part)
			retryable, after, asked = retryable || again, max(after, wait), max(asked, silence)
		}
	case interface{ Unwrap() error }:
		return advice(e.Unwrap())
	}
	return retryable, after, asked
}
