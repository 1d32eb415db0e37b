package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/image"
)

// The errors that callers of the runtime tell apart.
type (
	Error = fault.Error
	Code  = fault.Code
)

// The codes of Error, defined in package fault.
const (
	Unsupported    = fault.Unsupported
	InvalidPackage = fault.InvalidPackage
	Garbled        = fault.Garbled
	NotFound       = fault.NotFound
	Unreachable    = fault.Unreachable
	Denied         = fault.Denied
	Refused        = fault.Refused
	Unsigned       = fault.Unsigned
	NoSpace        = fault.NoSpace
	Conflict       = fault.Conflict
	StartFailed    = fault.StartFailed
	Exited         = fault.Exited
	Unhealthy      = fault.Unhealthy
	Timeout        = fault.Timeout
	Internal       = fault.Internal
)

// Persists tells from the file system whether a NoSpace error, which says what it needs, would recur.
func Persists(err error) bool {
	var space *image.NoSpaceError
	return errors.As(err, &space) && space.Persists()
}

// ofDevice is code unless the device is at fault: no space, a failing medium, no runc or shim.
func ofDevice(code Code, err error) Code {
	switch {
	case code != Internal && code != StartFailed:
		return code
	case fault.IsFull(err):
		return NoSpace
	case errors.Is(err, unix.EIO), strings.Contains(err.Error(), unix.EIO.Error()): // from a shim there come words only
		return Internal
	case lacksRuntime(err.Error()):
		return Internal
	}
	return code
}

// lacksRuntime recognises a missing OCI runtime or shim, but no program missing in a container.
func lacksRuntime(text string) bool {
	return strings.Contains(text, "unable to retrieve OCI runtime error") && strings.Contains(text, "executable file not found") ||
		strings.Contains(text, "binary not installed") || strings.Contains(text, "containerd-shim-runc-v2 not found")
}

// CodeOf returns the code of an error of the runtime.
func CodeOf(err error) Code { return fault.CodeOf(err) }

// fail makes err an Error about object, with code if it has none, unless it is one or a cancellation.
func fail(code Code, object string, err error) error {
	var known *Error
	if errors.As(err, &known) {
		if known.Object != "" {
			return err
		}
		code = known.Code
	}
	return failAs(code, object, err)
}

// failAs is fail with a known code and object, whatever err wraps.
func failAs(code Code, object string, err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", object, err)
	case errors.Is(err, context.DeadlineExceeded):
		code = Timeout
	}
	return &Error{Code: ofDevice(code, err), Object: object, Err: err}
}
