// Package fault is the one form of the errors that the callers of the runtime act on.
package fault

import (
	"context"
	"errors"
)

// Code says what kind of failure an Error is, for callers that branch.
type Code string

// The codes of Error.
const (
	Unsupported    Code = "unsupported"     // this runtime or this device cannot do what is asked for
	InvalidPackage Code = "invalid-package" // a package, its Compose file or an image is wrong, as it was published
	Garbled        Code = "garbled"         // what came is not what was to come: later may work
	NotFound       Code = "not-found"       // the registry does not have the package or image
	Unreachable    Code = "unreachable"     // no answer, or the registry is in trouble: later may work
	Denied         Code = "denied"          // credentials are missing or were not accepted
	Refused        Code = "refused"         // the configuration of this device forbids it, such as plain HTTP
	Unsigned       Code = "unsigned"        // it has to be signed, and has no signature that counts
	NoSpace        Code = "no-space"        // the images do not fit on this device
	Conflict       Code = "conflict"        // another project has the port, the name or the address
	StartFailed    Code = "start-failed"    // a container could not be created or started
	Exited         Code = "exited"          // a container ended during start-up
	Unhealthy      Code = "unhealthy"       // a container runs, and its health check fails
	Timeout        Code = "timeout"         // the caller's deadline passed
	Internal       Code = "internal"        // this device: disk, kernel, containerd
)

// Error is a failure that concerns one object: a service, an image, a package, a project.
type Error struct {
	Code   Code
	Object string // empty: who called says it
	Err    error
}

func (e *Error) Error() string {
	if e.Object == "" {
		return e.Err.Error()
	}
	return e.Object + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// CodeOf is the code of the first *Error in err's chain; Timeout for a deadline, else Internal.
func CodeOf(err error) Code {
	var typed *Error
	switch {
	case errors.As(err, &typed):
		return typed.Code
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	}
	return Internal
}
