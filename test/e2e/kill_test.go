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
	"github.com/margolite/margolite/test/plant"
)

// kill -9 at every durable commit of the store and at every mark of every step
// of the runtime, during install, update and removal, each followed by a start:
// the device converges, nothing runs twice, no report is lost.
func TestKilledAtEveryStep(t *testing.T) {
	changes := []struct {
		name   string
		before func(r *rig)        // the state to begin with
		change func(r *rig) uint64 // what the WFM wants next
		state  margo.State         // what it has to hear in the end
		after  func(r *rig)        // what must be true then
		heard  []margo.State       // of this change, in order
	}{
		{
			name:   "install",
			before: func(*rig) {},
			change: func(r *rig) uint64 { return r.publish(r.Deployment(demoID, nil)).Version },
			state:  margo.Installed,
			after:  func(r *rig) { r.runsOnce("Hello") },
			heard:  []margo.State{margo.Pending, margo.Installing, margo.Installed},
		},
		{
			name:   "update",
			before: func(r *rig) { r.install(r.Deployment(demoID, nil)); r.runsOnce("Hello") },
			change: func(r *rig) uint64 {
				return r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus", "TAG": "2.0.0"})).Version
			},
			state: margo.Installed,
			after: func(r *rig) { r.runsOnce("Servus") },
			heard: []margo.State{margo.Pending, margo.Installing, margo.Installed},
		},
		{
			name:   "remove",
			before: func(r *rig) { r.install(r.Deployment(demoID, nil)); r.runsOnce("Hello") },
			change: func(r *rig) uint64 { return r.remove(demoID) },
			state:  margo.Removed,
			after:  func(r *rig) { r.isAsBefore(r.t.Context()) },
			heard:  []margo.State{margo.Removing, margo.Removed},
		},
	}
	onBackends(t, func(t *testing.T, r *rig) {
		for _, c := range changes {
			// Once without a kill, to learn which steps there are.
			trace := filepath.Join(r.dir, "trace-"+c.name)
			r.clear()
			r.running()
			c.before(r)
			r.stop()
			r.start("MARGOLITE_TRACE=" + trace)
			r.await(demoID, c.state, c.change(r))
			c.after(r)
			r.stop()
			marks, err := os.ReadFile(trace)
			check(t, err)
			for mark := range strings.Lines(string(marks)) {
				var kind, name string
				var n int
				if _, err := fmt.Sscan(mark, &kind, &n, &name); err != nil {
					t.Fatalf("trace says %q: %v", mark, err)
				}
				variable := map[string]string{"commit": "MARGOLITE_KILL_AFTER_COMMIT", "step": "MARGOLITE_KILL_AT_STEP"}[kind]
				t.Run(fmt.Sprintf("%s/%s %d %s", c.name, kind, n, name), func(t *testing.T) {
					r := r.forTest(t)
					r.clear()
					r.running()
					c.before(r)
					r.delivered()
					r.stop()
					known := len(r.WFM.Statuses(demoID))
					version := c.change(r)
					r.start(fmt.Sprintf("%s=%d", variable, n))
					r.endedOr(c.state, version)
					r.running()
					r.await(demoID, c.state, version)
					c.after(r)
					var heard []margo.State
					for _, report := range r.WFM.Statuses(demoID)[known:] {
						heard = append(heard, report.Status.State)
					}
					// A report may come twice, after those that followed it, too: it
					// is sent again when its acknowledgement was lost with the kill.
					if !slices.Equal(firsts(heard), c.heard) || heard[len(heard)-1] != c.state {
						t.Errorf("the WFM heard %v, want %v", heard, c.heard)
					}
					r.stop()
				})
			}
		}
	})
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
		check(r.t, r.Ended())
		return
	case err := <-finished:
		check(r.t, err)
	}
	select {
	case <-r.Done(): // by its own hand, after the last report
	case <-time.After(2 * time.Second):
	}
	r.Kill()
}

// forTest is the same plant, reporting to another test.
func (r *rig) forTest(t *testing.T) *rig {
	other := &rig{Plant: r.Plant, t: t, dir: r.dir, before: r.before}
	t.Cleanup(func() {
		r.Kill()
		if t.Failed() {
			other.showLog()
		}
	})
	return other
}

// clear brings the device back to where nothing is deployed.
func (r *rig) clear() {
	r.t.Helper()
	if len(r.WFM.Deployments(plant.Client)) == 0 {
		return
	}
	r.running()
	r.await(demoID, margo.Removed, r.remove(demoID))
	r.isAsBefore(r.t.Context())
	r.delivered()
	r.stop()
	check(r.t, os.RemoveAll(filepath.Join(r.StateDir(), "volumes")))
	check(r.t, os.Truncate(filepath.Join(r.dir, "agent.log"), 0))
}

// runsOnce says that the demo runs as wanted, and each of its services once.
func (r *rig) runsOnce(greeting string) {
	r.t.Helper()
	r.eventually("the application greets with "+greeting, func() error {
		a, err := plant.Ask(r.t.Context(), 8090)
		if err == nil && a.Greeting != greeting {
			err = fmt.Errorf("it says %q", a.Greeting)
		}
		return err
	})
	if n := len(r.services(demoID)); n != 2 {
		r.t.Errorf("%d services, want 2", n)
	}
	if pids := plant.Processes("/demoapp"); len(pids) != 2 {
		r.t.Errorf("%d processes of the application run, want 2", len(pids))
	}
}
