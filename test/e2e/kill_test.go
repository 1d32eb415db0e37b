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
)

// kill -9 at every durable commit of the store and at every mark of every step
// of the runtime, during install, update and removal, each followed by a start:
// the device converges, nothing runs twice, no report is lost.
func TestKilledAtEveryStep(t *testing.T) {
	changes := []struct {
		name   string
		before func(p *plant)        // the state to begin with
		change func(p *plant) uint64 // what the WFM wants next
		state  margo.State           // what it has to hear in the end
		after  func(p *plant)        // what must be true then
		heard  []margo.State         // of this change, in order
	}{
		{
			name:   "install",
			before: func(*plant) {},
			change: func(p *plant) uint64 { return p.publish(p.deployment(demoID, nil)).Version },
			state:  margo.Installed,
			after:  func(p *plant) { p.runsOnce("Hello") },
			heard:  []margo.State{margo.Pending, margo.Installing, margo.Installed},
		},
		{
			name:   "update",
			before: func(p *plant) { p.install(p.deployment(demoID, nil)); p.runsOnce("Hello") },
			change: func(p *plant) uint64 {
				return p.publish(p.deployment(demoID, map[string]any{"GREETING": "Servus", "TAG": "2.0.0"})).Version
			},
			state: margo.Installed,
			after: func(p *plant) { p.runsOnce("Servus") },
			heard: []margo.State{margo.Pending, margo.Installing, margo.Installed},
		},
		{
			name:   "remove",
			before: func(p *plant) { p.install(p.deployment(demoID, nil)); p.runsOnce("Hello") },
			change: func(p *plant) uint64 { return p.remove(demoID) },
			state:  margo.Removed,
			after:  func(p *plant) { p.eventually("nothing is left", p.nothingLeft) },
			heard:  []margo.State{margo.Removing, margo.Removed},
		},
	}
	onBackends(t, func(t *testing.T, p *plant) {
		for _, c := range changes {
			// Once without a kill, to learn which steps there are.
			trace := filepath.Join(p.dir, "trace-"+c.name)
			p.clear()
			p.running()
			c.before(p)
			p.stop()
			p.start("MARGOLITE_TRACE=" + trace)
			p.await(demoID, c.state, c.change(p))
			c.after(p)
			p.stop()
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
					p := p.forTest(t)
					p.clear()
					p.running()
					c.before(p)
					p.delivered()
					p.stop()
					known := len(p.wfm.Statuses(demoID))
					version := c.change(p)
					p.start(fmt.Sprintf("%s=%d", variable, n))
					p.endedOr(c.state, version)
					p.running()
					p.await(demoID, c.state, version)
					c.after(p)
					var heard []margo.State
					for _, r := range p.wfm.Statuses(demoID)[known:] {
						heard = append(heard, r.Status.State)
					}
					// A report may come twice, after those that followed it, too: it
					// is sent again when its acknowledgement was lost with the kill.
					if !slices.Equal(firsts(heard), c.heard) || heard[len(heard)-1] != c.state {
						t.Errorf("the WFM heard %v, want %v", heard, c.heard)
					}
					p.stop()
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
func (p *plant) endedOr(state margo.State, version uint64) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	finished := make(chan error, 1)
	go func() { finished <- p.wfm.WaitState(ctx, demoID, state, version) }()
	select {
	case <-p.agent.done:
		p.agent = nil
		return
	case err := <-finished:
		check(p.t, err)
	}
	select {
	case <-p.agent.done: // by its own hand, after the last report
		p.agent = nil
	case <-time.After(2 * time.Second):
		p.kill()
	}
}

// forTest is the same plant, reporting to another test.
func (p *plant) forTest(t *testing.T) *plant {
	other := *p
	other.t = t
	t.Cleanup(func() {
		if other.agent != nil {
			other.kill()
		}
		if t.Failed() {
			other.showLog()
		}
	})
	return &other
}

// clear brings the device back to where nothing is deployed.
func (p *plant) clear() {
	p.t.Helper()
	if len(p.wfm.Deployments(clientID)) == 0 {
		return
	}
	p.running()
	p.await(demoID, margo.Removed, p.remove(demoID))
	p.eventually("nothing is left", p.nothingLeft)
	p.delivered()
	p.stop()
	check(p.t, os.RemoveAll(filepath.Join(p.stateDir(), "volumes")))
	check(p.t, os.Truncate(filepath.Join(p.dir, "agent.log"), 0))
}

// runsOnce says that the demo runs as wanted, and each of its services once.
func (p *plant) runsOnce(greeting string) {
	p.t.Helper()
	p.eventually("the application greets with "+greeting, func() error {
		a, err := p.ask(8090)
		if err == nil && a.Greeting != greeting {
			err = fmt.Errorf("it says %q", a.Greeting)
		}
		return err
	})
	if n := len(p.services(demoID)); n != 2 {
		p.t.Errorf("%d services, want 2", n)
	}
	if pids := p.processes("/demoapp"); len(pids) != 2 {
		p.t.Errorf("%d processes of the application run, want 2", len(pids))
	}
}
