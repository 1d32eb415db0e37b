package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
)

// Out of the windows everything is fetched and nothing changed, also by what is
// approved; a window that opens lets it happen at once.
func TestPOL07ChangesWaitForTheirWindow(t *testing.T) {
	long(t, "the rest of policy")
	quoted := func(windows []string) string { return "['" + strings.Join(windows, "', '") + "']" }
	closed := ruled(map[string]string{"windows": quoted(notNow()), "approval": "updates"})
	r := newRigRuled(t, nil)
	r.install(r.Deployment(demoID, nil))
	r.answers(8090)
	before := r.services(demoID)

	check(t, r.Reconfigure(closed))
	done := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus", "TAG": "2.0.0"}))
	change := r.waits(demoID, done.Digest, "approval", "window")
	if u := change.Until; u == nil || time.Until(*u) < 5*time.Hour || time.Until(*u) > 6*time.Hour {
		t.Errorf("it may go at %v, want in six hours", u)
	}
	r.approve(demoID, done.Digest)
	if change := r.waits(demoID, done.Digest, "window"); change.Answer != "approved" {
		t.Errorf("what was approved is %+v", change)
	}
	r.Kill()
	r.running()
	r.waits(demoID, done.Digest, "window")
	r.untouched(demoID, before)

	closed.Policy["windows"] = quoted(aroundNow())
	check(t, r.Reconfigure(closed))
	r.await(demoID, margo.Installed, done.Version)
	r.says(8090, "Servus")
}

// A hold keeps changes away, of one deployment or of all, until it is released
// or its time is over; kill -9 makes no difference. An approval lasts as long as
// the revision is the desired one.
func TestPOL07HoldsKeepChangesAway(t *testing.T) {
	const otherID = "b0a7e1c2-0000-4000-8000-0000000000b1"
	r := newRigRuled(t, map[string]string{"approval": "updates"})
	ctx := t.Context()
	r.install(r.Deployment(demoID, nil))
	r.answers(8090)
	before := r.services(demoID)
	_, err := r.Control().Hold(ctx, control.HoldRequest{Holder: "press 4", Reason: "calibration", Deployment: demoID})
	check(t, err)
	first := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus", "TAG": "2.0.0"}))
	r.waits(demoID, first.Digest, "approval", "lock")
	r.approve(demoID, first.Digest)
	change := r.waits(demoID, first.Digest, "lock")
	if !containsAll(change.Reasons[0].Text, "press 4", "calibration") || change.Until != nil {
		t.Errorf("it waits for %+v until %v", change.Reasons, change.Until)
	}
	r.install(r.Deployment(otherID, map[string]any{"PORT": 8091})) // it is about the one
	r.Kill()
	r.running()
	r.waits(demoID, first.Digest, "lock")
	if locks := r.status().Locks; len(locks) != 1 || locks[0].Holder != "press 4" || locks[0].Deployment != demoID {
		t.Errorf("locks are %+v", locks)
	}

	// Another revision is another change, and so is the first one when it comes back.
	second := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Moin"}))
	r.waits(demoID, second.Digest, "approval", "lock")
	again := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus", "TAG": "2.0.0"}))
	r.waits(demoID, again.Digest, "approval", "lock")
	released, err := r.Control().Release(ctx, control.ReleaseRequest{Holder: "press 4"})
	check(t, err)
	if len(released) != 1 {
		t.Errorf("%+v was released", released)
	}
	r.waits(demoID, again.Digest, "approval")
	r.untouched(demoID, before)

	const held = 3 * time.Second
	lock, err := r.Control().Hold(ctx, control.HoldRequest{Holder: "press 4", Seconds: int64(held / time.Second)})
	check(t, err)
	taken := time.Now()
	if lock.Until == nil {
		t.Fatalf("a hold with an end is %+v", lock)
	}
	r.approve(demoID, again.Digest)
	if change := r.waits(demoID, again.Digest, "lock"); change.Until == nil || !change.Until.Equal(*lock.Until) {
		t.Errorf("it may go at %v, want %v", change.Until, lock.Until)
	}
	r.await(demoID, margo.Installed, again.Version)
	if took := time.Since(taken); took < held {
		t.Errorf("it was installed %s after a hold of %s", took, held)
	}
	r.says(8090, "Servus")
	if locks := r.status().Locks; len(locks) > 0 {
		t.Errorf("locks are %+v", locks)
	}
}

const busyFile = `
services:
  machine:
    image: ${REGISTRY}/margolite/demoapp:1.0.0
    command: [busy]
    environment: {LOCK_FILE: /locks/machine}
    volumes: ["${LOCKS}:/locks"]
    restart: "no"
`

// A workload that must not be disturbed holds a lock file, and nothing changes;
// when it is killed it holds nothing.
func TestPOL07WorkloadsHoldLockFiles(t *testing.T) {
	long(t, "the rest of policy")
	r := newRigRuled(t, nil)
	r.install(r.Deployment(demoID, nil))
	r.answers(8090)
	machine := r.application(labID, "1.0.0", busyFile, nil)
	machine.Parameters["LOCKS"] = r.LockDir()
	r.install(machine)
	file := filepath.Join(r.LockDir(), "machine")
	r.eventually("the lock is taken", func() error {
		if locks := r.status().Locks; len(locks) != 1 || locks[0].File != file {
			return fmt.Errorf("locks are %+v", locks)
		}
		return nil
	})

	before := r.services(demoID)
	done := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus", "TAG": "2.0.0"}))
	change := r.waits(demoID, done.Digest, "lock")
	if !strings.Contains(change.Reasons[0].Text, "machine") {
		t.Errorf("it waits for %+v, want the name of the lock", change.Reasons)
	}
	r.Kill()
	r.running()
	r.waits(demoID, done.Digest, "lock")
	r.untouched(demoID, before)

	check(t, unix.Kill(r.services(labID)["machine"].Pid, unix.SIGKILL))
	r.await(demoID, margo.Installed, done.Version)
	r.says(8090, "Servus")
	check(t, os.Remove(file)) // it is the workload's
}

// The site's program is asked just before a change: it may ask for patience, and
// forbid. One that does not answer is asked again, and not left behind.
func TestPOL07TheHookIsAsked(t *testing.T) {
	long(t, "the rest of policy")
	dir := t.TempDir()
	hook, said, asked := filepath.Join(dir, "hook"), filepath.Join(dir, "answer"), filepath.Join(dir, "asked")
	check(t, os.WriteFile(hook, fmt.Appendf(nil, "#!/bin/sh\nenv >> %s\n. %s\n", asked, said), 0o755))
	answers := func(text string) { t.Helper(); check(t, os.WriteFile(said, []byte(text+"\n"), 0o644)) }
	answers("exit 0")
	r := newRigRuled(t, map[string]string{"hook": "{command: [" + hook + "], timeout: 1s}"})
	r.install(r.Deployment(demoID, nil))
	r.answers(8090)
	before := r.services(demoID)

	answers("echo the oven is hot; exit 75")
	done := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus"}))
	if change := r.waits(demoID, done.Digest, "hook"); !strings.Contains(change.Reasons[0].Text, "the oven is hot") {
		t.Errorf("it waits for %+v, want what the hook says", change.Reasons)
	} else if u := change.Until; u == nil || time.Until(*u) > time.Minute {
		t.Errorf("the hook is asked again at %v", u)
	}
	answers("exec sleep 86399")
	check(t, r.Reload()) // which has everything looked at again
	r.eventually("the hook does not answer", func() error {
		if change := r.waits(demoID, done.Digest, "hook"); strings.Contains(change.Reasons[0].Text, "oven") {
			return fmt.Errorf("it waits for %+v", change.Reasons)
		}
		return nil
	})
	r.untouched(demoID, before)
	if len(plant.Processes("sleep", "86399")) > 0 {
		t.Error("a hook that did not answer runs on")
	}
	answers("exit 0")
	check(t, r.Reload())
	r.await(demoID, margo.Installed, done.Version)
	r.says(8090, "Servus")
	if environment, err := os.ReadFile(asked); err != nil || !containsAll(string(environment), demoID, done.Digest.String(), "update", "install") {
		t.Errorf("the hook was told %s, %v", environment, err)
	}

	before = r.services(demoID)
	answers("echo the batch is not done >&2; exit 1")
	vetoed := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Moin"}))
	if fault := r.failsWith(demoID, "VETOED", vetoed.Version); !strings.Contains(fault.Message, "the batch is not done") {
		t.Errorf("the WFM heard %q, want what the hook said", fault.Message)
	}
	r.quiet()
	heard := len(r.WFM.Statuses(demoID))
	r.Kill()
	r.running()
	r.settled(demoID)
	r.quiet()
	r.untouched(demoID, before)
	if got := r.reports(demoID, heard); len(got) > 0 {
		t.Errorf("over a restart the WFM heard %v", got)
	}
	answers("exit 0")
}
