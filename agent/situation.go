package agent

import "github.com/margolite/margolite/policy"

// situation is what a decision about a deployment depends on at this moment. The
// lock files are looked at now: nobody tells when one is let go, so who waits
// for one asks again.
func (r *reconciler) situation(id string) policy.Situation {
	return policy.Situation{Now: r.now(), ClockWrong: r.locks.wrong(), Locks: r.locks.held(id), Before: r.ledger.turns.before(id)}
}
