package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/test/expect"
)

// A lock of a deployment names it as everything else on the command line does,
// and is part of the status until it is released.
func TestADeploymentIsHeldByItsName(t *testing.T) {
	s := installedSite(t)
	who := control.Caller{UID: 1000, User: "operator"}
	expect.Error(t, expect.ErrorOf(s.agent.Hold(t.Context(), control.HoldRequest{Deployment: "nobody's", Caller: who})), control.ErrNotFound, "hold")
	for _, name := range []string{"app", strings.ToUpper(first[:8]), first} {
		lock := expect.Value(s.agent.Hold(t.Context(), control.HoldRequest{Deployment: name, Reason: "bearings", Caller: who}))(t)
		expect.Equal(t, []string{lock.Deployment, lock.Holder}, []string{first, "operator"}, "lock of %q", name)
	}
	locks := func() []control.Lock { return s.fullStatus().Locks }
	s.restart()
	expect.Equal(t, len(locks()), 1, "locks")
	expect.Equal(t, []string{locks()[0].Deployment, locks()[0].Reason}, []string{first, "bearings"}, "lock")
	expect.Equal(t, len(expect.Value(s.agent.Release(t.Context(), control.ReleaseRequest{Caller: who}))(t)), 1, "released")
	expect.Equal(t, len(locks()), 0, "locks")
}

// The directory for the lock files of a deployment comes and goes with it, whatever a
// workload has put there, and is removed at the next start where that was not possible.
func TestTheDirectoryOfLockFilesGoesWithItsDeployment(t *testing.T) {
	s := newSite(t)
	locks := filepath.Join(s.runDir, "locks")
	dirs := func() int { return len(expect.Value(os.ReadDir(locks))(t)) }
	s.installed()
	expect.Equal(t, dirs(), 1, "directories of an installed deployment")
	check(t, os.WriteFile(filepath.Join(locks, first, "mixer"), nil, 0o600))
	s.publish(2, nil)
	s.heard(first, append(installed, "removing@2", "removed@2")...)
	expect.Equal(t, dirs(), 0, "directories of a removed deployment")
	s.restart(func() { check(t, os.Mkdir(filepath.Join(locks, second), 0o777)) }) // of one that went while the agent was killed
	s.eventually("the directory of what is gone is removed", func() bool { return dirs() == 0 })
}
