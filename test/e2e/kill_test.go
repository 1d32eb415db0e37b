package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

// kill -9 at every durable commit of the store and at every mark of every step
// of the runtime, during install, update and removal, each followed by a start:
// the device converges, nothing runs twice, no report is lost.

func TestKilledAtEveryStep(t *testing.T) {
	long(t, "kills at every point")
	installed := func(r *rig) { r.install(r.Deployment(demoID, nil)); r.runsOnce("Hello") }
	heard := []margo.State{margo.Pending, margo.Installing, margo.Installed}
	for name, c := range map[string]killedChange{
		"installation": {
			before: func(*rig) {},
			change: func(r *rig) uint64 { return r.publish(r.Deployment(demoID, nil)).Version },
			after:  func(r *rig) { r.runsOnce("Hello") },
			heard:  heard,
		},
		"update": {
			before: installed,
			change: func(r *rig) uint64 {
				return r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus", "TAG": "2.0.0"})).Version
			},
			after: func(r *rig) { r.runsOnce("Servus") },
			heard: heard,
		},
		"removal": {
			before: installed,
			change: func(r *rig) uint64 { return r.remove(demoID) },
			after:  func(r *rig) { r.isAsBefore(r.t.Context()) },
			heard:  []margo.State{margo.Removing, margo.Removed},
		},
	} {
		t.Run(name, func(t *testing.T) { killedAtEveryStep(t, c) })
	}
}

// killedChange is a change during which the agent is killed.
type killedChange struct {
	before func(r *rig)        // the state to begin with
	change func(r *rig) uint64 // what the WFM wants next
	after  func(r *rig)        // what must be true then
	heard  []margo.State       // of this change by the WFM, in order
}

func killedAtEveryStep(t *testing.T, c killedChange) {
	end := c.heard[len(c.heard)-1]
	onBackends(t, func(t *testing.T, r *rig) {
		// Once without a kill, to learn which steps there are.
		trace := filepath.Join(r.Dir(), "trace")
		r.running()
		c.before(r)
		r.stop()
		r.start("MARGOLITE_TRACE=" + trace)
		r.await(demoID, end, c.change(r))
		c.after(r)
		r.stop()
		for i, point := range killPoints(t, trace) {
			if r.Containerd() != 0 && i%4 != 0 { // the agent's steps are the same, and this one is slow
				continue
			}
			t.Run(point.name, func(t *testing.T) {
				r := r.forTest(t)
				r.running()
				r.clear()
				c.before(r)
				r.quiet()
				r.stop()
				known := len(r.WFM.Statuses(demoID))
				version := c.change(r)
				r.start(point.env)
				r.endedOr(end, version)
				r.running()
				r.await(demoID, end, version)
				c.after(r)
				var heard []margo.State
				for _, report := range r.WFM.Statuses(demoID)[known:] {
					heard = append(heard, report.Status.State)
				}
				// A report may come twice, after those that followed it, too: it
				// is sent again when its acknowledgement was lost with the kill.
				if !slices.Equal(firsts(heard), c.heard) || heard[len(heard)-1] != end {
					t.Errorf("the WFM heard %v, want %v", heard, c.heard)
				}
				r.stop()
			})
		}
	})
}

// killPoint is where the agent can be killed.
type killPoint struct {
	name string
	env  string // of the agent that is killed there
}

// killPoints are all that an agent came by, as it has traced them.
func killPoints(t *testing.T, trace string) []killPoint {
	t.Helper()
	marks := expect.Value(os.ReadFile(trace))(t)
	var points []killPoint
	for line := range strings.Lines(string(marks)) {
		var kind, mark string
		var n int
		if _, err := fmt.Sscan(line, &kind, &n, &mark); err != nil {
			t.Fatalf("trace says %q: %v", line, err)
		}
		variable := map[string]string{"commit": "MARGOLITE_KILL_AFTER_COMMIT", "step": "MARGOLITE_KILL_AT_STEP"}[kind]
		points = append(points, killPoint{fmt.Sprintf("%s %d %s", kind, n, mark), fmt.Sprintf("%s=%d", variable, n)})
	}
	return points
}

// firsts are the states in the order in which each was heard first.
func firsts(heard []margo.State) []margo.State {
	var order []margo.State
	for _, state := range heard {
		if !slices.Contains(order, state) {
			order = append(order, state)
		}
	}
	return order
}

// endedOr waits for the agent to kill itself. Acknowledgements are batched, by
// chance in fewer commits than the last time: where the agent finishes without
// being killed, it is killed then.
func (r *rig) endedOr(state margo.State, version uint64) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
	defer cancel()
	finished := make(chan error, 1)
	go func() { finished <- r.WFM.WaitState(ctx, demoID, state, version) }()
	select {
	case <-r.Done():
		expect.Check(r.t, r.Ended())
		return
	case err := <-finished:
		expect.Check(r.t, err)
	}
	select {
	case <-r.Done(): // by its own hand, after the last report
	case <-time.After(2 * time.Second):
	}
	r.Kill()
}

// forTest is the same plant, reporting to another test.
func (r *rig) forTest(t *testing.T) *rig {
	other := &rig{Plant: r.Plant, t: t, before: r.before}
	t.Cleanup(func() {
		r.Kill()
		other.ShowLog(t)
	})
	return other
}

// clear brings the device, whose agent runs, back to where nothing is deployed.
func (r *rig) clear() {
	r.t.Helper()
	if len(r.WFM.Deployments(plant.Client)) == 0 {
		return
	}
	r.await(demoID, margo.Removed, r.remove(demoID))
	r.isAsBefore(r.t.Context())
	r.quiet()
	expect.Check(r.t, os.RemoveAll(filepath.Join(r.StateDir(), "volumes")))
	expect.Check(r.t, os.Truncate(filepath.Join(r.Dir(), "agent.log"), 0))
}

// runsOnce says that the demo runs as wanted, and each of its services once.
func (r *rig) runsOnce(greeting string) {
	r.t.Helper()
	r.says(8090, greeting)
	expect.Equal(r.t, len(r.services(demoID)), 2, "services")
	expect.Equal(r.t, len(plant.Processes("/demoapp")), 2, "processes of the application run")
}
