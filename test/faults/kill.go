package faults

import (
	"time"

	"github.com/margolite/margolite/test/faults/medium"
)

// longest is the most that the agent lives before it is killed again: half of
// the time it takes it to start and to begin with a change.
const longest = 1500 * time.Millisecond

// Kills makes changes and kills the agent that many times meanwhile, then waits
// for what comes out.
func (r *Rig) Kills(n int) {
	r.T.Helper()
	undisturbed := r.Undisturbed()
	for range n {
		if r.Rand.IntN(2) == 0 {
			r.Change()
		}
		r.pause(longest)
		undisturbed()
		r.KillAgent()
	}
	r.Converge()
	undisturbed()
}

// PowerCuts makes changes and cuts the power that many times meanwhile, then
// waits for what comes out.
func (r *Rig) PowerCuts(n int) {
	r.T.Helper()
	losses := medium.Losses()
	for range n {
		if r.Rand.IntN(2) == 0 {
			r.Change()
		}
		r.pause(2 * longest)
		r.CutPower(losses[r.Rand.IntN(len(losses))])
	}
	r.Converge()
}

// Faults is how many there were up to now.
func (r *Rig) Faults() int { return r.kills }
