package image

import "github.com/margolite/margolite/runtime/fault"

// The words of the tests for faults.
type (
	Kind  = fault.Code
	Error = fault.Error
)

const (
	NotFound    = fault.NotFound
	Unreachable = fault.Unreachable
	Denied      = fault.Denied
	Garbled     = fault.Garbled
	BadContent  = fault.InvalidPackage
	NoPlatform  = fault.Unsupported
	Unsupported = fault.Unsupported
	NoSpace     = fault.NoSpace
	Refused     = fault.Refused
	Unsigned    = fault.Unsigned
	Local       = fault.Internal
)

func kindOf(err error) Kind { return codeOf(err) }
