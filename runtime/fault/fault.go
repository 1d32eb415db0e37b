// Package fault has the one error type that callers of the runtime act on.
package fault

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// Code is the kind of failure of an Error, for callers that branch.
type Code string

const (
	Unsupported    Code = "unsupported"     // this runtime or device cannot do it
	InvalidPackage Code = "invalid-package" // a package, its Compose file or an image is wrong, as published
	Garbled        Code = "garbled"         // the content is not what was expected: a retry may help
	NotFound       Code = "not-found"       // the registry does not have the package or image
	Unreachable    Code = "unreachable"     // no answer, or a failing registry: a retry may help
	Denied         Code = "denied"          // credentials are missing or rejected
	Refused        Code = "refused"         // the device's configuration forbids it, such as plain HTTP
	Unsigned       Code = "unsigned"        // a required signature is missing or not accepted
	NoSpace        Code = "no-space"        // the images do not fit on this device
	Conflict       Code = "conflict"        // another project has the port, the name or the address
	StartFailed    Code = "start-failed"    // a container could not be created or started
	Exited         Code = "exited"          // a container ended during start-up
	Unhealthy      Code = "unhealthy"       // a container runs, but its health check fails
	Timeout        Code = "timeout"         // the caller's deadline passed
	Internal       Code = "internal"        // this device: disk, kernel, containerd
)

// Error is a failure of one object: a service, an image, a package, a project.
type Error struct {
	Code   Code
	Object string // "": the caller names it
	Err    error
}

func (e *Error) Error() string {
	if e.Object == "" {
		return e.Err.Error()
	}
	return e.Object + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of the first *Error in err's chain; Timeout for a deadline, else
// Internal.
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

// IsFull says that an error is one of a device without space. From another containerd there come words only.
func IsFull(err error) bool {
	if err == nil {
		return false
	}
	var known *Error
	full := errors.As(err, &known) && known.Code == NoSpace
	for _, e := range []error{unix.ENOSPC, unix.EDQUOT} {
		full = full || errors.Is(err, e) || strings.Contains(err.Error(), e.Error())
	}
	return full
}
