package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/plant"
)

// checkedFile is the demonstration's application, with a check of its page.
const checkedFile = `
services:
  web:
    image: ${REGISTRY}/margolite/demoapp:1.0.0
    command: [web]
    environment: {GREETING: "${GREETING:-Hello}"}
    ports: ["8090:8080"]
    healthcheck: %s
  counter:
    image: ${REGISTRY}/margolite/demoapp:1.0.0
    command: [counter]
    volumes: ["data:/data"]
volumes: {data: {}}
`

const (
	goodCheck = "{test: [CMD, /demoapp, healthy], interval: 1s, start_interval: 200ms, start_period: 30s}"
	badCheck  = "{test: [CMD, /demoapp, nonsense], interval: 200ms, retries: 2, start_period: 1s}"
)

// returned waits until the application is back on a revision with its data.
func (r *rig) returned(greeting string, visits uint64) {
	r.t.Helper()
	if a := r.says(8090, greeting); a.Visit <= visits {
		r.t.Errorf("it says %+v: its data are not those of visit %d", a, visits)
	}
}

// An update that does not become healthy is back where it was, with its data; the WFM
// hears what was wrong, and that the former revision runs. It is not tried again.
func TestPOL08AFailedUpdateIsBack(t *testing.T) {
	onBackends(t, func(t *testing.T, r *rig) {
		r.running()
		r.install(r.application(labID, "1.0.0", fmt.Sprintf(checkedFile, goodCheck), nil))
		former := r.deployment(labID).Digest
		visits := r.answers(8090).Visit
		update := r.application(labID, "2.0.0", fmt.Sprintf(checkedFile, badCheck), nil)
		update.Parameters["GREETING"] = "Ill"
		fault := r.failsWith(labID, "CONTAINER_UNHEALTHY", r.publish(update).Version)
		r.returned("Hello", visits)
		expect.Contains(t, fault.Message, "web", "the service in what the WFM heard")
		plant.Require(r.t, "the former revision is shown as the one that runs", func() error {
			if d := r.deployment(labID); d.State != string(margo.Failed) || d.Active != former || d.Error == nil || d.Error.Code != fault.Code {
				return fmt.Errorf("it is %+v", d)
			}
			return nil
		})
		plant.Require(r.t, "the WFM has heard that the former revision runs", func() error {
			if m := r.lastFault(labID).Message; !strings.Contains(m, "back to revision "+former) {
				return errors.New(m)
			}
			return nil
		})
		r.settled(labID)
		before, heard := r.services(labID), len(r.WFM.Statuses(labID))
		r.Kill()
		r.running()
		r.settled(labID)
		r.quiet()
		r.untouched(labID, before)
		if got := r.reports(labID, heard); len(got) > 0 {
			t.Errorf("over a restart the WFM heard %v", got)
		}
		r.install(r.application(labID, "3.0.0", fmt.Sprintf(checkedFile, goodCheck), nil))
	})
}

// Somebody on the device goes back to the revision before, without a WFM or a
// registry, and it stays so over restarts until the WFM wants something newer.
func TestPOL08RollbackByHandHolds(t *testing.T) {
	r := newRigRuled(t, nil)
	r.install(r.Deployment(demoID, nil))
	former := r.deployment(demoID).Digest
	ask := func(revision string) error {
		return r.Control().Rollback(t.Context(), control.ReturnRequest{Deployment: demoID, Revision: revision, Reason: "it is slow"})
	}
	expect.Error(t, ask(""), control.ErrConflict, "a way back from the first revision")
	done := r.install(r.Deployment(demoID, map[string]any{"GREETING": "Servus", "TAG": "2.0.0"}))
	visits := r.says(8090, "Servus").Visit
	expect.Equal(t, r.deployment(demoID).Former, former, "the way back")
	if err := ask(done.Digest.String()); !errors.Is(err, control.ErrConflict) && !errors.Is(err, control.ErrNotFound) {
		t.Errorf("a way back to what runs: %v, want a conflict", err)
	}
	r.quiet()
	expect.Check(t, errors.Join(r.WFM.Close(), r.Registry.Close()))
	expect.Check(t, ask(former))
	r.returned("Hello", visits)
	r.settled(demoID)
	before := r.services(demoID)
	r.Kill()
	r.running()
	r.settled(demoID)
	r.untouched(demoID, before)
	expect.Check(t, errors.Join(r.WFM.Start(""), r.Registry.Start("")))
	expect.Contains(t, r.failsWith(demoID, "ROLLED_BACK", done.Version).Message, "it is slow", "the WFM heard")
	r.stop()
	r.running()
	r.synced()
	r.untouched(demoID, before)
	r.Kill()
	r.powerOff()
	r.running()
	r.says(8090, "Hello")
	r.shows("history", "rollback.asked", "it is slow", "rollback.done")
	r.shows("history --verify")
	r.install(r.Deployment(demoID, map[string]any{"GREETING": "Newer"}))
	r.says(8090, "Newer")
}
