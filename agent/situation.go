package agent

import "github.com/margolite/margolite/policy"

// situation is what decisions about a deployment depend on beside the rules, as
// it is now.
func (r *reconciler) situation(_ string) policy.Situation {
	return policy.Situation{Now: r.now(), ClockWrong: r.clockWrong(), Locks: r.locks.held()}
}
