package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
)

// pairFile has two services that show which revision they are of.
const pairFile = `
services:
  one:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sleep, "${ONE}"]
    stop_signal: SIGKILL
  two:
    image: ${REGISTRY}/margolite/tools:1.0.0
    command: [sleep, "${TWO}"]
    stop_signal: SIGKILL
`

// What both services of pairFile sleep for, in the revision before and after.
const older, newer, broken = "100001", "100002", "no time"

// kill -9 at every durable commit of the store and at every mark of every step
// of the runtime, while an update fails and goes back, while one is approved and
// held, and while somebody goes back by hand: with another start the device ends
// in one of the two revisions, in all of its services, says which, has told the
// WFM, and its journal is whole.

func TestKilledAtEveryStepOfAnUpdateThatFails(t *testing.T) {
	long(t, "kills at every point")
	safeAtEveryStep(t, safeChange{
		before: []string{older}, wanted: broken,
		site:  func(*rig, digest.Digest) {},
		state: margo.Failed, code: "CONTAINER_EXITED", runs: older,
		noted: []string{"change.begun", "change.failed", "rollback.done"},
	})
}

func TestKilledAtEveryStepOfAnApprovedUpdate(t *testing.T) {
	long(t, "kills at every point")
	safeAtEveryStep(t, safeChange{
		policy: map[string]string{"approval": "updates"}, before: []string{older}, wanted: newer,
		site:  (*rig).approvesDespiteKills,
		state: margo.Installed, runs: newer,
		noted: []string{"lock.taken", "change.approved", "lock.released", "change.begun", "change.done"},
	})
}

func TestKilledAtEveryStepOfAWayBackByHand(t *testing.T) {
	long(t, "kills at every point")
	safeAtEveryStep(t, safeChange{
		before: []string{older, newer},
		site:   (*rig).returnsDespiteKills,
		state:  margo.Failed, code: "ROLLED_BACK", runs: older,
		noted: []string{"rollback.asked", "rollback.done"},
	})
}

// safeChange is a change that ends in one of two revisions.
type safeChange struct {
	policy map[string]string
	before []string // the revisions that were installed, each over the one before
	wanted string   // the revision that the WFM publishes then; empty: none
	site   func(r *rig, wanted digest.Digest)
	state  margo.State // what the WFM has to hear in the end
	code   string
	runs   string
	noted  []string // in the journal, each at least once
}

func safeAtEveryStep(t *testing.T, c safeChange) {
	r := newRig(t, "embedded")
	// Once without a kill, to learn which steps there are.
	trace := filepath.Join(r.dir, "trace")
	c.attempt(r, 0, "MARGOLITE_TRACE="+trace)
	r.stop()
	former := ""
	for i, point := range killPoints(t, trace) {
		same := former == "after" && point.mark == "before" // one step has ended, and the next has not begun
		if former = point.mark; same {
			continue
		}
		t.Run(point.name, func(t *testing.T) {
			r := r.forTest(t)
			c.attempt(r, i+1, point.env)
			r.stop()
		})
	}
	check(t, r.Configure(usual))
}

// attempt makes the change with revisions of its own, by an agent with more
// environment.
func (c safeChange) attempt(r *rig, point int, env string) {
	t := r.t
	pair := func(seconds string) wfmsim.Deployment {
		d := r.application(demoID, "1.0.0", pairFile, nil)
		d.Parameters["ONE"], d.Parameters["TWO"] = newer, seconds
		if seconds == older {
			d.Parameters["ONE"] = older
		}
		d.Parameters["POINT"] = point
		return d
	}
	check(t, r.Configure(usual))
	r.running()
	revisions := map[string]wfmsim.Published{}
	for _, seconds := range c.before {
		done := r.publish(pair(seconds))
		r.synced()
		r.await(demoID, margo.Installed, done.Version)
		revisions[seconds] = done
	}
	r.runsPair(c.before[len(c.before)-1])
	r.quiet()
	last := r.lastNote()
	r.stop()
	known, version := len(r.WFM.Statuses(demoID)), r.WFM.Version(plant.Client)
	changing := ruled(c.policy)
	changing.Settle = longSettle
	check(t, r.Configure(changing))
	var wanted wfmsim.Published
	if c.wanted != "" {
		wanted = r.publish(pair(c.wanted))
		revisions[c.wanted], version = wanted, wanted.Version
	}
	r.start(env)
	c.site(r, wanted.Digest)
	r.despiteKills("the WFM hears of the end", func() error {
		reports := r.WFM.Statuses(demoID)
		if s := reports[len(reports)-1].Status; len(reports) == known || s.State != c.state || s.AdoptedVersion < version {
			return fmt.Errorf("it heard %v", r.reports(demoID, known))
		}
		return nil
	})
	r.despiteKills("everything is in the journal", func() error { return r.noted(last, c.noted...) })
	r.despiteKills("everything is told, and the agent at rest", func() error {
		s, err := r.Control().Status(t.Context())
		if err == nil && s.Outbox > 0 {
			err = fmt.Errorf("%d reports are not delivered", s.Outbox)
		}
		return errors.Join(err, r.Control().Sync(t.Context()))
	})
	r.stop() // before another commit that it may be killed after
	r.running()
	r.quiet()
	r.runsPair(c.runs)
	if c.code != "" {
		if fault := r.lastFault(demoID); fault.Code != c.code {
			t.Errorf("the WFM heard %+v, want %s", fault, c.code)
		}
	}
	for _, state := range r.reports(demoID, known) {
		if c.state == margo.Failed && strings.HasPrefix(state, "installed") {
			t.Errorf("of what failed the WFM heard %v", r.reports(demoID, known))
		}
	}
	if d := r.deployment(demoID); d.State != string(c.state) || d.Active != revisions[c.runs].Digest.String() {
		t.Errorf("status shows %s with revision %s, want %s with %s", d.State, d.Active, c.state, revisions[c.runs].Digest)
	}
	v, err := r.Control().VerifyHistory(t.Context())
	check(t, err)
	if v.Problem != "" {
		t.Errorf("the journal is not as it was written: %s", v.Problem)
	}
}

// despiteKills repeats what fails until it succeeds, and starts the agent again
// when it was killed.
func (r *rig) despiteKills(what string, try func() error) {
	r.t.Helper()
	r.eventually(what, func() error {
		select {
		case <-r.Done():
			check(r.t, r.Ended())
			r.running()
		default:
		}
		return try()
	})
}

// approvesDespiteKills takes a lock, approves what waits, and releases the lock.
func (r *rig) approvesDespiteKills(wanted digest.Digest) {
	ctx := r.t.Context()
	r.despiteKills("a lock is taken", func() error {
		_, err := r.Control().Hold(ctx, control.HoldRequest{Holder: "line 1"})
		return err
	})
	r.despiteKills("the change is approved", func() error { return r.Control().Approve(ctx, answer(demoID, wanted, "")) })
	r.despiteKills("it waits for the lock", func() error {
		s, err := r.Control().Status(ctx)
		if err == nil && (len(s.Deployments) != 1 || s.Deployments[0].Change == nil || len(s.Deployments[0].Change.Reasons) != 1) {
			err = fmt.Errorf("status shows %+v", s.Deployments)
		}
		return err
	})
	r.despiteKills("the lock is released", func() error {
		_, err := r.Control().Release(ctx, control.ReleaseRequest{Holder: "line 1"})
		return err
	})
}

// returnsDespiteKills asks for the way back until that is decided.
func (r *rig) returnsDespiteKills(digest.Digest) {
	ctx := r.t.Context()
	r.despiteKills("the way back is asked for", func() error {
		s, err := r.Control().Status(ctx)
		if err != nil {
			return err
		}
		if e := s.Deployments[0].Error; e != nil && e.Code == "ROLLED_BACK" {
			return nil
		}
		return errors.Join(r.Control().Rollback(ctx, control.ReturnRequest{Deployment: demoID}), errors.New("asked"))
	})
}

// runsPair waits until both services are of a revision, and nothing else runs.
func (r *rig) runsPair(seconds string) {
	r.t.Helper()
	r.eventually("both services are of revision "+seconds, func() error {
		var found []string
		for _, s := range []string{older, newer} {
			for range plant.Processes("sleep", s) {
				found = append(found, s)
			}
		}
		if !slices.Equal(found, []string{seconds, seconds}) {
			return fmt.Errorf("%v run", found)
		}
		services, err := r.servicesOnce(demoID)
		if err == nil && len(services) != 2 {
			err = fmt.Errorf("services are %+v", services)
		}
		return err
	})
}

// lastNote is the newest entry of the journal.
func (r *rig) lastNote() uint64 {
	r.t.Helper()
	entries, err := r.Control().History(r.t.Context(), control.HistoryRequest{Last: 1})
	check(r.t, err)
	if len(entries) != 1 {
		r.t.Fatalf("the journal is %+v", entries)
	}
	return entries[0].Sequence
}

// noted says whether the journal has entries of each kind after one.
func (r *rig) noted(last uint64, kinds ...string) error {
	entries, err := r.Control().History(r.t.Context(), control.HistoryRequest{Since: last + 1})
	for _, kind := range kinds {
		if err == nil && !slices.ContainsFunc(entries, func(e control.Entry) bool { return e.Kind == kind }) {
			err = fmt.Errorf("no %s in %+v", kind, entries)
		}
	}
	return err
}
