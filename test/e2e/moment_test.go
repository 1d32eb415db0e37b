package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/wfmsim"
)

// A hold keeps changes of a deployment away until it is released; kill -9 makes no
// difference. An approval lasts as long as the revision is the desired one.
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

	r.approve(demoID, again.Digest)
	r.await(demoID, margo.Installed, again.Version)
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
    environment: {LOCK_FILE: /locks/machine, REVISION: "${REVISION}"}
    volumes: ["${LOCKS}:/locks"]
    restart: "no"
`

// A workload that must not be disturbed holds a lock file, and its deployment does
// not change while the others do; when it is killed it holds nothing.
func TestPOL07WorkloadsHoldLockFiles(t *testing.T) {
	long(t, "lock files")
	r := newRigRuled(t, nil)
	r.install(r.Deployment(demoID, nil))
	r.answers(8090)
	machine := func(revision string) wfmsim.Deployment {
		d := r.application(labID, revision, busyFile, nil)
		d.Parameters["LOCKS"], d.Parameters["REVISION"] = filepath.Join(r.LockDir(), labID), revision
		return d
	}
	r.install(machine("1.0.0"))
	file := filepath.Join(r.LockDir(), labID, "machine")
	r.eventually("the lock is taken", func() error {
		if locks := r.status().Locks; len(locks) != 1 || locks[0].File != file {
			return fmt.Errorf("locks are %+v", locks)
		}
		return nil
	})

	before := r.services(labID)
	held := r.publish(machine("2.0.0"))
	change := r.waits(labID, held.Digest, "lock")
	if !strings.Contains(change.Reasons[0].Text, "machine") {
		t.Errorf("it waits for %+v, want the name of the lock", change.Reasons)
	}
	r.Kill()
	r.running()
	r.waits(labID, held.Digest, "lock")
	free := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus", "TAG": "2.0.0"}))
	r.await(demoID, margo.Installed, free.Version)
	r.says(8090, "Servus")
	r.untouched(labID, before)

	check(t, unix.Kill(before["machine"].Pid, unix.SIGKILL))
	r.await(labID, margo.Installed, held.Version)
	check(t, unix.Kill(r.services(labID)["machine"].Pid, unix.SIGKILL)) // else it is not removed
}

// The site's program is asked just before a change, and may forbid it.
func TestPOL07TheHookIsAsked(t *testing.T) {
	long(t, "the site's hook")
	hook := filepath.Join(t.TempDir(), "hook")
	answers := func(text string) { t.Helper(); check(t, os.WriteFile(hook, []byte("#!/bin/sh\n"+text+"\n"), 0o755)) }
	answers("exit 0")
	r := newRigRuled(t, map[string]string{"hook": "{command: [" + hook + "]}"})
	r.install(r.Deployment(demoID, nil))
	before := r.services(demoID)
	answers(`echo "the batch of $MARGOLITE_DEPLOYMENT is not done"; exit 1`)
	done := r.publish(r.Deployment(demoID, map[string]any{"GREETING": "Servus"}))
	if fault := r.failsWith(demoID, "VETOED", done.Version); !strings.Contains(fault.Message, "the batch of "+demoID+" is not done") {
		t.Errorf("the WFM heard %q, want what the hook said", fault.Message)
	}
	r.untouched(demoID, before)
	answers("exit 0")
}
