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
//	                     │  ▲                ▲  │              │               │
//	               fails │  │ reopened       │  │ fails        │ fails         │ fails
//	                     │  └────────────┐   │  │              │ returned      │ returned
//	                     └─────────────► failed ◄──────────────┴───────────────┘
//	                                       │    staged, works ──► staged, active
//
//	(any) ── desired ──► fetched
//	(any) ── absent ──► leaving ── go ──► removing ── gone ──► (forgotten)
//	                       └── listed ──► active
//
// (unknown) is absent, too, when containers of a deployment are found that no
// record tells of: the store was lost.
//
// # The gate
//
// Twice the gate stands between what is decided and containers that change: after
// staged and after leaving. It is asked at the moment of acting, with what the
// site has said about exactly this revision: first the rules, then the site's
// hook, then the rules again when the worker has its turn. What it lets pass is
// finished, also over restarts and when the window closes meanwhile. A removal
// that passes at once is removing with the manifest that is accepted. Bringing
// back what worked, and keeping what runs, never waits; neither does a revision
// that runs already. A first installation that failed and is tried again changes
// containers: it asks each time.
//
// # What runs
//
// What has to run follows from the record alone: in applying and active the
// desired revision, in removing none, in every other phase the one that worked
// last (Active), if any. Two things can be otherwise for a while, and Return
// says which:
//
//	due, failing   Desired was begun and failed, or somebody asked for the way
//	               back: Active has not come back yet; failing has been told of
//	left           Desired was begun and failed, and the rules leave it to people
//	               to go back (policy.rollback manual or off): nothing is touched
//
// A power cut in applying goes on with the desired revision, in every other
// phase with Active: in the end one of the two runs as a whole. How often
// applying was begun is counted before it is; a revision that the agent does not
// survive three times is given up (INTERRUPTED). A revision that failed, was
// rejected or was left by hand is not tried again until the WFM publishes
// another one; what the rules of the device refuse (NOT_ALLOWED) when they change.
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
	// Leaving: the WFM no longer lists the deployment; the gate is asked next.
	Leaving Phase = "leaving"
	// Removing: its containers go.
	Removing Phase = "removing"
	// Forgotten is never stored: the record itself is gone.
	Forgotten Phase = ""
)

// event is what moves a deployment from one phase to the next.
type event string

const (
	eventDesired  event = "desired"  // the WFM published another revision, or the deployment again
	eventStaged   event = "staged"   // every byte of the desired revision is on the medium
	eventGo       event = "go"       // the gate lets it pass
	eventWorks    event = "works"    // the desired revision runs and settled
	eventFails    event = "fails"    // it cannot be staged, applied or kept running, or may not be
	eventReturned event = "returned" // somebody asked for the revision before
	eventReopened event = "reopened" // the site has changed its mind about it
	eventAbsent   event = "absent"   // the WFM no longer lists the deployment
	eventListed   event = "listed"   // it does again, with the revision that runs
	eventGone     event = "gone"     // nothing of it is left in the runtime
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
		switch p {
		case Staged:
			return Applying, nil
		case Leaving:
			return Removing, nil
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
	case eventReturned:
		switch p {
		case Applying, Active, Failed:
			return Failed, nil
		}
	case eventReopened:
		if p == Failed {
			return Fetched, nil
		}
	case eventAbsent:
		if p != Removing {
			return Leaving, nil
		}
	case eventListed:
		if p == Leaving {
			return Active, nil
		}
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
	case Fetched, Staged, Leaving:
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
