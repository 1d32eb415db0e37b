// Package faults tries to break margolite: the real program with real
// containerd, runc and containers, and a WFM that publishes, changes, breaks and
// takes back applications at random, while the agent is killed, the power goes,
// the medium fails or runs full, and what is around the device goes away and
// comes back. In the end, and as far as that can be said in between, everything
// has to be as the WFM wants it.
//
// # How
//
// A Rig is a plant (package plant) with a few deployments; its device may have
// its state on a medium of its own (package medium). What the WFM wants, one
// change after the other, and what goes wrong meanwhile is drawn from a seed. What
// must be true is in invariants.go, a function each.
//
// Two things a device may do, and has to tell: a revision that the agent did not
// survive three times is given up, and one whose medium failed while it took the
// place of another waits, for longer than is waited for it here. The next that the
// WFM publishes then must run.
//
// # Repeating
//
// What is done follows from the seed that every failure names; when it happens
// does not follow to the microsecond, for the machine has its own mind. Repeat
// with the seed, a few times. MARGOLITE_FAULTS_LOGS names a directory for the whole
// logs of agents that failed, with what their goroutines did at the end.
//
// # How long
//
// The tests are a short, fixed set. `make chaos TIME=10m SEED=n` goes on for as
// long as it is told, with another seed for each sequence: on two cores a second
// for each kill, and three for each cut of the power, with all that is looked at.
package faults
