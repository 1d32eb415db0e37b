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

// Every error of the runtime that callers branch on is of this form.
type (
	Error = fault.Error
	Code  = fault.Code
)

// The codes of Error, see package fault.
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
	case fault.IsFull(err):
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

// CodeOf is the code of an error of the runtime.
func CodeOf(err error) Code { return fault.CodeOf(err) }

// fail makes err, which says what could not be done, an Error about object, unless it is
// about one already or the caller gave up. code is that of what has none.
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

// failAs is fail for an error whose code and object are known, whatever it wraps.
func failAs(code Code, object string, err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", object, err)
	case errors.Is(err, context.DeadlineExceeded):
		code = Timeout
	}
	return &Error{Code: ofDevice(code, err), Object: object, Err: err}
}
