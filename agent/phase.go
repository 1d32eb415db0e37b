package agent

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/store"
)

// Phase is where a deployment stands between the document that the WFM published and
// containers that run. Each transition is persisted before it is acted upon.
//
//	           desired             staged            go              works
//	(unknown) ────────► fetched ──────────► staged ───────► applying ──────► active
//	                     │  ▲                ▲  │              │               │
//	               fails │  │ reopened       │  │ fails        │ fails         │ fails
//	                     │  └────────────┐   │  │              │ returned      │ returned
//	                     └─────────────► failed ◄──────────────┴───────────────┘
//	                                       │    staged, go, works ──► staged, applying, active
//
//	(any) ── desired ──► fetched
//	staged ── found ──► active
//	(any) ── absent ──► leaving ── go ──► removing ── gone ──► (forgotten)
//	                       └── desired, and it runs ──► active
//
// (unknown) also stands for containers found without a record, when the store was lost.
// If they are just what the WFM lists, the deployment goes from staged to active and nobody
// is asked; else it is an update.
//
// # The gate
//
// The gate is asked before containers change, after staged and after leaving, at the moment of
// acting and with the site's answer about exactly this revision: first the rules, then the
// site's hook, then the rules again when the worker has its turn. A change that has passed is
// finished, even after a restart or outside the window. A removal that passes at once enters
// removing as the manifest is accepted. Restoring what worked and keeping what runs never wait.
// Each retry of a failed revision asks again.
//
// # What runs
//
// The record alone says what has to run: in applying and active the desired revision, in
// removing none, in every other phase the one that worked last (Active), if any. Return
// names the exceptions:
//
//	due, failing   Desired was begun and failed, or is tried again, or somebody asked for
//	               a rollback: Active is not back yet; failing: that was reported
//	left           Desired was begun and failed, and the rules leave the rollback to people
//	               (policy.rollback manual or off): nothing is touched
//	nothing        something was begun and nothing has ever worked: all of it but volumes is
//	               removed, unless the rules leave that to people; until something works
//
// What was found running without a record stays until the desired revision is applied.
//
// # Retries
//
// The cause of a fault decides whether a revision that was begun and failed is retried, within
// failed; the WFM is told of a different fault, or of installing and installed. A first
// installation is retried with growing delays unless the fault is permanent; between tries
// nothing runs. What worked before has to stop for an update, so that is retried only if its
// fault may pass by itself: when the device has recovered, or after minutes, with delays that
// grow to a day, and only while what worked before runs, everything needed is on the device,
// and there is space. The delays begin again with each process.
//
// After a power cut, applying goes on with the desired revision, every other phase with
// Active: in the end one of the two runs as a whole. Applying is counted before it begins;
// a revision that the agent does not survive three times is given up (INTERRUPTED). As an
// update, a revision that was given up, does not work, was rejected or was left in place is
// not retried until the WFM publishes another one; one that the device's rules refuse
// (NOT_ALLOWED) is retried when they change.
type Phase string

// The phases of a deployment.
const (
	// Fetched: the document is verified and desired.
	Fetched Phase = "fetched"
	// Staged: everything that it needs is on the device.
	Staged   Phase = "staged"
	Applying Phase = "applying"
	Active   Phase = "active"
	Failed   Phase = "failed"
	// Leaving: the WFM no longer lists the deployment.
	Leaving  Phase = "leaving"
	Removing Phase = "removing"
	// Forgotten is never stored: the record itself is gone.
	Forgotten Phase = ""
)

// event is what happens to a deployment; also the name of its commit.
type event string

const (
	eventDesired  event = "desired"  // the WFM published another revision, or the deployment again
	eventStaged   event = "staged"   // every byte of the desired revision is on the medium
	eventGo       event = "go"       // the gate lets it pass; of what failed: and it works now
	eventWorks    event = "works"    // the desired revision runs and settled
	eventFound    event = "found"    // it did already, when the store had lost its record
	eventFails    event = "fails"    // it cannot be staged, applied, kept running or removed, or may not be
	eventReturned event = "returned" // a rollback was requested
	eventReopened event = "reopened" // the site has changed its mind about it
	eventAbsent   event = "absent"   // the WFM no longer lists the deployment
	eventGone     event = "gone"     // nothing of it is left in the runtime
)

// transitions is the state machine. What the manifest says counts in every phase, see next. Any
// other event only updates the record within its phase.
var transitions = map[event]map[Phase]Phase{
	eventDesired: {},
	eventStaged:  {Fetched: Staged, Failed: Staged},
	eventGo:      {Staged: Applying, Failed: Applying, Leaving: Removing},
	eventWorks:   {Applying: Active, Failed: Active},
	eventFound:   {Staged: Active},
	eventFails: {
		Fetched: Failed, Staged: Failed, Applying: Failed, Active: Failed, Failed: Failed,
		Leaving: Leaving, Removing: Removing, // it is refused, or tried again
	},
	eventReturned: {Applying: Failed, Active: Failed, Failed: Failed, Fetched: Fetched, Staged: Staged}, // what comes next goes on
	eventReopened: {Failed: Fetched, Leaving: Leaving},
	eventAbsent:   {},
	eventGone:     {Removing: Forgotten},
}

type facts struct {
	now      time.Time
	accepted uint64 // version of the accepted manifest, or of the one that the event accepts; 0: unreadable
	former   uint64 // version accepted before
}

// next returns the record after an event; an event that its phase does not take is an error. What
// the manifest says counts even in a phase that only a newer version of this program knows. The
// caller adds the details: before eventDesired what is desired, after eventFails and
// eventReturned the fault.
func next(d store.Deployment, e event, f facts) (store.Deployment, error) {
	d.Components = slices.Clone(d.Components)
	legal, moves := transitions[e]
	if !moves {
		return d, nil
	}
	from := Phase(d.Phase)
	to, ok := legal[from]
	switch {
	case ok:
	case e == eventDesired && from == Leaving && d.Return == "" && runs(&d, d.Desired.Digest):
		to = Active // nothing was done to it
	case e == eventDesired:
		to = Fetched
	case e == eventAbsent && from != Removing:
		to = Leaving
	default:
		return d, fmt.Errorf("deployment %s: phase %q cannot take event %q", d.ID, from, e)
	}
	switch to {
	case from, Staged, Forgotten:
	case Fetched, Leaving: // reported already, until the next revision is begun
		d.Adopted = cmp.Or(adopted(&d, f.former), f.accepted)
	default: // ST-14: it is begun, or was refused for good
		d.Adopted = cmp.Or(f.accepted, d.Desired.Version)
	}
	d.Fault, d.Unpacking, d.Attempts = nil, nil, 0
	switch e {
	case eventDesired, eventAbsent:
		d.Answers = remembered(d.Answers)
		if d.Active == nil && (from == Applying || from == Removing) {
			d.Return = wayBackOf(&d) // what was begun is removed
		}
	case eventGo:
		if to == Applying {
			d.Attempts, d.Return = 1, ""
		}
	case eventWorks, eventFound:
		works := d.Desired
		if hasFormer(&d) {
			d.Former = d.Active
		}
		d.Active, d.Found, d.Return = &works, false, ""
	case eventReturned:
		d.Return = returnDue
	}
	if e == eventFails || e == eventReturned { // the fault has the states of the components
		if to == from {
			return d, nil
		}
	} else {
		for i, c := range d.Components {
			d.Components[i] = store.Component{Name: c.Name, State: string(to.stateOf(i))}
		}
	}
	d.Phase, d.Since, d.Waits = string(to), f.now.UTC(), nil
	return d, nil
}

// stateOf is the state of the i-th component of a deployment that enters the phase: components
// are applied one after the other.
func (p Phase) stateOf(i int) margo.State {
	if p == Applying && i > 0 {
		return margo.Pending
	}
	return p.State()
}

var states = map[Phase]margo.State{
	Fetched: margo.Pending, Staged: margo.Pending, Leaving: margo.Pending,
	Applying: margo.Installing, Active: margo.Installed, Failed: margo.Failed, Removing: margo.Removing,
}

// State is the state in which a deployment of this phase is reported (ST-03).
func (p Phase) State() margo.State { return cmp.Or(states[p], margo.Removed) }
