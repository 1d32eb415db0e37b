package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/wfmsim"
)

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
