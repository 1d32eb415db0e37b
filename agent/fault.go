package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
)

// Codes of the errors that this device reports: protocol 6.5 leaves them to the implementation,
// and source keeps them apart from the reserved ones.
const (
	codeInvalidID         = "INVALID_ID"         // the manifest gives the deployment an id that cannot be used
	codeInvalidDocument   = "INVALID_DOCUMENT"   // the deployment's document cannot be read
	codeInvalidParameters = "INVALID_PARAMETERS" // two parameters contradict, or one cannot be a variable
	codeUnsupportedType   = "UNSUPPORTED_TYPE"   // not a Compose deployment
	codeWrongDevice       = "WRONG_DEVICE"       // the document names another device
	codeCapacity          = "MARGO_INSUFFICIENT_CAPACITY"
	codeNotEligible       = "MARGO_NOT_ELIGIBLE"  // no rule of the deployment fits this device
	codeUnsupported       = "COMPOSE_UNSUPPORTED" // the Compose file asks for what this device does not do
	codeInvalidPackage    = "INVALID_PACKAGE"     // the component package or its Compose file is wrong
	codeGarbled           = "ARTIFACT_GARBLED"    // what came is not what the digest says
	codeNotFound          = "ARTIFACT_NOT_FOUND"  // the registry has no such package or image
	codeUnreachable       = "REGISTRY_UNREACHABLE"
	codeDenied            = "REGISTRY_DENIED"
	codeStorageFull       = "STORAGE_FULL" // the images do not fit on the device
	codeConflict          = "PORT_CONFLICT"
	codeStartFailed       = "START_FAILED"
	codeExited            = "CONTAINER_EXITED"
	codeUnhealthy         = "CONTAINER_UNHEALTHY"
	codeTimeout           = "TIMEOUT"
	codeNotAllowed        = "NOT_ALLOWED" // the workload asks for what this device does not give
	codeRejected          = "REJECTED"    // the site has said no
	codeVetoed            = "VETOED"      // the site's hook has said no
	codeReturned          = "ROLLED_BACK" // the site went back to the revision before
	codeInterrupted       = "INTERRUPTED" // the agent ended repeatedly while it was applied
	codeInternal          = "DEVICE_ERROR"
)

// maxFaultText bounds, in bytes, what is kept of an error for each component: it may quote a
// workload's output. The WFM is told less.
const maxFaultText = 2048

// fault is a failure of one deployment, as it is reported and acted upon.
type fault struct {
	code      string
	component string // empty: the deployment as a whole
	err       error
}

func (f *fault) Error() string {
	if f.component == "" {
		return f.err.Error()
	}
	return fmt.Sprintf("component %s: %v", f.component, f.err)
}

func (f *fault) Unwrap() error { return f.err }

// cause is where a fault lies. It follows from the code alone, so that it is the same after a
// restart; see permanent and passing for what it means.
type cause int

const (
	// ofDevice: of this device or its surroundings. It may pass by itself, as may a code recorded
	// by a newer version of the agent.
	ofDevice cause = iota
	// ofDocument: it can never run as published. It is judged again when judgedBy changes.
	ofDocument
	// ofSite: a person, or the site's rules, decided so.
	ofSite
	// ofWorkload: it ran and did not work. Time may help, as with a missing dependency.
	ofWorkload
	// ofAttempt: the agent did not survive it several times. Power cuts are possible, but more
	// often the revision takes the device down, so it is not retried until the WFM publishes
	// another revision.
	ofAttempt
)

func causeOf(code string) cause {
	switch code {
	case codeInvalidDocument, codeInvalidParameters, codeUnsupportedType, codeWrongDevice, codeUnsupported, codeInvalidPackage:
		return ofDocument
	case codeNotAllowed, // a change of the rules triggers the retry
		codeRejected, codeVetoed, codeReturned:
		return ofSite
	case codeStartFailed, codeExited, codeUnhealthy, codeTimeout:
		return ofWorkload
	case codeInterrupted:
		return ofAttempt
	}
	return ofDevice
}

// permanent says that retrying the same revision cannot help, or is not wanted.
func permanent(code string) bool {
	by := causeOf(code)
	return by == ofDocument || by == ofSite || by == ofAttempt
}

// passing says that a revision which was begun and failed is worth a retry although what worked
// before would have to stop for it.
func passing(code string) bool { return causeOf(code) == ofDevice }

// temporary says that a failure is no news for the WFM: staging resumes with the network.
func (f *fault) temporary() bool { return f.code == codeUnreachable }

func runtimeFault(component string, err error) *fault {
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	code := runtime.CodeOf(err)
	if code == runtime.Unsigned {
		err = fmt.Errorf("policy.allow.unsigned: %w", err)
	}
	return &fault{code: cmp.Or(codesOfRuntime[code], codeInternal), component: component, err: err}
}

// codesOfRuntime are the codes of runtime errors; all others are codeInternal.
var codesOfRuntime = map[runtime.Code]string{
	runtime.Unsupported:    codeUnsupported,
	runtime.InvalidPackage: codeInvalidPackage,
	runtime.Garbled:        codeGarbled,
	runtime.NotFound:       codeNotFound,
	runtime.Unreachable:    codeUnreachable,
	runtime.Denied:         codeDenied,
	runtime.Refused:        codeDenied,
	runtime.Unsigned:       codeNotAllowed,
	runtime.NoSpace:        codeStorageFull,
	runtime.Conflict:       codeConflict,
	runtime.StartFailed:    codeStartFailed,
	runtime.Exited:         codeExited,
	runtime.Unhealthy:      codeUnhealthy,
	runtime.Timeout:        codeTimeout,
}

// concerns says that the fault is one of a component of d. The deployment as a whole fails if all
// of its components do, or if a former component cannot be removed.
func (f *fault) concerns(d *store.Deployment, component string) bool {
	own := slices.ContainsFunc(d.Components, func(c store.Component) bool { return c.Name == f.component })
	return !own || f.component == component
}

// record writes the fault into a deployment: into its component, or into all if the deployment
// failed as a whole (ST-04, ST-07, ST-08). name is the source of the deployment's own errors.
func (f *fault) record(d *store.Deployment, name string) {
	d.Fault = &store.Fault{Code: f.code, Source: name, Message: shortened(f.Error(), maxFaultText)}
	for i := range d.Components {
		c := &d.Components[i]
		if f.concerns(d, c.Name) {
			c.State = string(Failed.State())
			message := f.Error()
			if f.component == c.Name {
				message = f.err.Error()
			}
			c.Fault = &store.Fault{Code: f.code, Source: c.Name, Message: shortened(message, maxFaultText)}
			continue
		}
		c.Fault = nil
		if c.State == string(Failed.State()) || c.State == string(Applying.State()) {
			c.State = string(Fetched.State())
		}
	}
}

// shortened keeps the beginning of a text: errors quote others last.
func shortened(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-3], "") + "..."
}

// same says that reporting the fault would tell nothing new: the same component failed with the
// same code. Wording differs between attempts and is not worth a report.
func (f *fault) same(d *store.Deployment) bool {
	if d.Fault == nil || d.Fault.Code != f.code {
		return false
	}
	for _, c := range d.Components {
		if failed := c.Fault != nil; failed != f.concerns(d, c.Name) {
			return false
		}
	}
	return true
}
