package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/image"
)

// Code says what kind of failure an Error is, for callers that branch.
type Code string

// The codes of Error.
const (
	Unsupported    Code = "unsupported"     // the project asks for what this runtime does not do
	InvalidPackage Code = "invalid-package" // the package or the Compose file in it is wrong
	Garbled        Code = "garbled"         // what came is not what was to come: later may work
	NotFound       Code = "not-found"       // the registry does not have the package or image
	Unreachable    Code = "unreachable"     // temporary: try again later
	Denied         Code = "denied"          // the registry or the local configuration refuses
	Unsigned       Code = "unsigned"        // the package has to be signed, and has no signature that counts
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
	Object string
	Err    error
}

func (e *Error) Error() string { return e.Object + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Persists says that an error of NoSpace would come again: there still is not
// what the images need. It looks at the file system and nothing else. Where an
// error does not say what it needs, it does not persist.
func Persists(err error) bool {
	var space *image.NoSpaceError
	return errors.As(err, &space) && space.Persists()
}

// ofDevice is the code of an error of this device, which may say that there is no
// space on it, that its medium fails, or that its runc or shim is not installed: none
// is the doing of what was to start.
func ofDevice(code Code, err error) Code {
	switch {
	case code != Internal && code != StartFailed:
		return code
	case image.IsFull(err):
		return NoSpace
	case errors.Is(err, unix.EIO), strings.Contains(err.Error(), unix.EIO.Error()): // from a shim there come words only
		return Internal
	case lacksRuntime(err.Error()):
		return Internal
	}
	return code
}

// lacksRuntime tells by the words of the shim or of containerd whether an OCI runtime
// or a shim is not installed. If a program in a container is missing, it is the runtime
// that says so.
func lacksRuntime(text string) bool {
	return strings.Contains(text, "unable to retrieve OCI runtime error") && strings.Contains(text, "executable file not found") ||
		strings.Contains(text, "binary not installed") || strings.Contains(text, "containerd-shim-runc-v2 not found")
}

// CodeOf is the code of the first *Error in err's chain; Timeout for a deadline, else Internal.
func CodeOf(err error) Code {
	var typed *Error
	switch {
	case errors.As(err, &typed):
		return typed.Code
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	default:
		return Internal
	}
}

// fail makes err, which says what could not be done, an Error of code, unless it
// is one already or the caller gave up.
func fail(code Code, object string, err error) error {
	var typed *Error
	switch {
	case errors.As(err, &typed):
		return err
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", object, err)
	case errors.Is(err, context.DeadlineExceeded):
		code = Timeout
	}
	return &Error{Code: ofDevice(code, err), Object: object, Err: err}
}
