package agent

import (
	"fmt"

	"github.com/margolite/margolite/agent/margo"
)

// Phase is where a deployment stands between the document that the WFM
// published and containers that run. It is persisted with each transition,
// before anything is done on account of it.
//
//	           desired             staged            go              works
//	(unknown) ────────► fetched ──────────► staged ───────► applying ──────► active
//	                       │                 ▲  │               │              │
//	                 fails │          staged │  │ fails         │ fails        │ fails
//	                       └───────────────► failed ◄───────────┴──────────────┘
//	                                           │
//	                                           └── works ──► active
//
//	(any) ── desired ──► fetched        (any) ── absent ──► removing ── gone ──► (forgotten)
//
// (unknown) is absent, too, when containers of a deployment are found that no
// record tells of: the store was lost.
//
// What has to run follows from the phase alone: in applying and active the
// desired revision, in every other phase the one that worked last, if any.
type Phase string

// The phases.
const (
	// Fetched: the document is verified and desired; staging comes next.
	Fetched Phase = "fetched"
	// Staged: every byte is on the medium; the gate is asked next.
	Staged Phase = "staged"
	// Applying: containers are being changed.
	Applying Phase = "applying"
	// Active: the desired revision runs.
	Active Phase = "active"
	// Failed: the desired revision does not run.
	Failed Phase = "failed"
	// Removing: the WFM no longer lists the deployment; its containers go.
	Removing Phase = "removing"
	// Forgotten is never stored: the record itself is gone.
	Forgotten Phase = ""
)

// event is what moves a deployment from one phase to the next.
type event string

const (
	eventDesired event = "desired" // the WFM published another revision, or the deployment again
	eventStaged  event = "staged"  // every byte of the desired revision is on the medium
	eventGo      event = "go"      // the gate lets it pass
	eventWorks   event = "works"   // the desired revision runs and settled
	eventFails   event = "fails"   // it cannot be staged, applied or kept running
	eventAbsent  event = "absent"  // the WFM no longer lists the deployment
	eventGone    event = "gone"    // nothing of it is left in the runtime
)

// next is the whole state machine: every legal transition and no other.
func next(p Phase, e event) (Phase, error) {
	switch e {
	case eventDesired:
		return Fetched, nil
	case eventStaged:
		if p == Fetched || p == Failed {
			return Staged, nil
		}
	case eventGo:
		if p == Staged {
			return Applying, nil
		}
	case eventWorks:
		if p == Applying || p == Failed {
			return Active, nil
		}
	case eventFails:
		switch p {
		case Fetched, Staged, Applying, Active, Failed:
			return Failed, nil
		}
	case eventAbsent:
		return Removing, nil
	case eventGone:
		if p == Removing {
			return Forgotten, nil
		}
	}
	return p, fmt.Errorf("a deployment in phase %q cannot take event %q", p, e)
}

// State is the state in which a deployment of this phase is reported (ST-03).
func (p Phase) State() margo.State {
	switch p {
	case Fetched, Staged:
		return margo.Pending
	case Applying:
		return margo.Installing
	case Active:
		return margo.Installed
	case Failed:
		return margo.Failed
	case Removing:
		return margo.Removing
	}
	return margo.Removed
}
