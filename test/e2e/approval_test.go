package e2e

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

// newRigRuled is a rig on the embedded containerd with rules of the site, as the
// section policy has them, whose agent runs.
func newRigRuled(t *testing.T, policy map[string]string) *rig {
	t.Helper()
	r := newRig(t, "embedded")
	settings := usual
	settings.Policy = policy
	expect.Check(t, r.Configure(settings))
	t.Cleanup(func() { // before what is left is removed, for which nobody is asked
		expect.Check(t, r.Configure(usual))
		if r.Running() {
			expect.Check(t, r.Reload())
		}
	})
	r.running()
	return r
}

// deployment is what status shows of one, or nil.
func (r *rig) deployment(id string) *control.Deployment {
	r.t.Helper()
	s := expect.Value(r.Control().Status(r.t.Context()))(r.t)
	for _, d := range s.Deployments {
		if d.ID == id {
			return &d
		}
	}
	return nil
}

// waits returns once the change to a revision is staged and waits for just
// these reasons, and gives it.
func (r *rig) waits(id string, revision digest.Digest, reasons ...string) *control.Pending {
	r.t.Helper()
	var change *control.Pending
	plant.Require(r.t, fmt.Sprintf("the change to %s waits for %v", revision, reasons), func() error {
		d := r.deployment(id)
		if d == nil || d.Change == nil {
			return fmt.Errorf("no change waits: %+v", d)
		}
		change = d.Change
		var codes []string
		for _, reason := range change.Reasons {
			codes = append(codes, reason.Code)
		}
		if change.Revision != revision.String() || !slices.Equal(codes, reasons) || change.Kind != "remove" && len(change.Services) == 0 {
			return fmt.Errorf("it is %+v", change)
		}
		return nil
	})
	return change
}

// answer is what somebody on the device says about the change to a revision.
func answer(id string, revision digest.Digest, reason string) control.AnswerRequest {
	return control.AnswerRequest{Deployment: id, Revision: revision.String(), Reason: reason}
}

// approve approves the change to a revision.
func (r *rig) approve(id string, revision digest.Digest) {
	r.t.Helper()
	expect.Check(r.t, r.Control().Approve(r.t.Context(), answer(id, revision, "")))
}

// reports are what the WFM heard of a deployment after the first n reports.
func (r *rig) reports(id string, n int) (heard []string) {
	for _, report := range r.WFM.Statuses(id)[n:] {
		text := string(report.Status.State)
		if report.Status.Error != nil {
			text += " " + report.Status.Error.Code
		}
		heard = append(heard, fmt.Sprintf("%s@%d", text, report.Status.AdoptedVersion))
	}
	return heard
}

// lastFault is what the WFM heard last of a deployment, which failed.
func (r *rig) lastFault(id string) *margo.Fault {
	r.t.Helper()
	all := r.WFM.Statuses(id)
	last := all[len(all)-1].Status
	expect.Require(r.t, last.State == margo.Failed && last.Error != nil, "the WFM heard %+v, want a failure", last)
	return last.Error
}

// failsWith waits until the WFM heard of a failure with a code, and gives it.
func (r *rig) failsWith(id, code string, version uint64) *margo.Fault {
	r.t.Helper()
	r.await(id, margo.Failed, version)
	fault := r.lastFault(id)
	expect.Require(r.t, fault.Code == code, "the WFM heard of %+v, want %s", fault, code)
	return fault
}

// says fails the test unless an application greets so, and gives its answer.
func (r *rig) says(port int, greeting string) plant.Answer {
	r.t.Helper()
	return expect.Value(plant.Visit(r.t.Context(), port, greeting))(r.t)
}

// A change that nobody has approved touches no container, whatever becomes of
// the agent, the power and the WFM's wishes; what is approved is one revision, which
// needs neither the WFM nor the registry any more.
func TestPOL05POL06POL07AnUnapprovedUpdateTouchesNothing(t *testing.T) {
	r := newRigRuled(t, map[string]string{"approval": "updates"})
	r.install(r.Deployment(demoID, nil)) // of an installation nobody is asked
	visits := r.answers(8090).Visit
	r.quiet()
	before, heard := r.services(demoID), len(r.WFM.Statuses(demoID))

	first := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus", "TAG": "2.0.0"}))
	change := r.waits(demoID, first.Digest, "approval")
	expect.True(t, change.Kind == "update" && change.Answer == "" && change.Until.IsZero(), "what waits is %+v", change)
	r.shows("status", "approv", "web", "1.0.0", "2.0.0", "GREETING", "Servus")
	t.Run("over a restart, and over kill -9", func(t *testing.T) {
		r.t = t
		r.stop()
		r.running()
		r.waits(demoID, first.Digest, "approval")
		r.untouched(demoID, before)
		r.Kill()
		r.running()
		r.waits(demoID, first.Digest, "approval")
		r.untouched(demoID, before)
	})
	var second plant.Answer
	moin := map[string]any{"GREETING": "Moin", "TAG": "2.0.0"}
	newer := r.publish(r.Deployment(demoID, moin))
	t.Run("with a newer manifest, over a power cut", func(t *testing.T) {
		r.t = t
		r.waits(demoID, newer.Digest, "approval")
		r.untouched(demoID, before)
		r.Kill()
		r.powerOff()
		r.running()
		if second = r.says(8090, "Hello"); second.Version != "1.0.0" || second.Visit <= visits {
			t.Errorf("after the power cut it says %+v, want visit %d of version 1.0.0", second, visits+1)
		}
		r.settled(demoID)
		r.waits(demoID, newer.Digest, "approval")
	})
	r.t = t
	before = r.services(demoID)
	r.quiet()
	expect.Equal(t, r.reports(demoID, heard), []string{"pending@2"}, "while it waited the WFM heard")

	t.Run("approving one revision does not approve another", func(t *testing.T) {
		r.t = t
		err := r.Control().Approve(t.Context(), answer(demoID, first.Digest, "")) // by one who looked at it too early
		expect.Error(t, err, control.ErrConflict, "an answer to the former change")
		r.waits(demoID, newer.Digest, "approval")
		r.untouched(demoID, before)

		expect.Check(t, errors.Join(r.WFM.Close(), r.Registry.Close()))
		r.approve(demoID, newer.Digest)
		if a := r.says(8090, "Moin"); a.Version != "2.0.0" || a.Visit <= second.Visit {
			t.Errorf("it says %+v, want version 2.0.0 and a visit after %d", a, second.Visit)
		}
		expect.Check(t, errors.Join(r.WFM.Start(""), r.Registry.Start("")))
		r.await(demoID, margo.Installed, newer.Version)
		before := r.services(demoID)
		third := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus"}))
		r.waits(demoID, third.Digest, "approval")
		r.untouched(demoID, before)

		// Back to what runs nothing changes: nobody is asked.
		r.install(r.Deployment(demoID, moin))
		r.untouched(demoID, before)
	})
	r.t = t
}
