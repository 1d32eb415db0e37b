package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/agent/control"
)

// A lock of a deployment names it as everything else on the command line does,
// and is part of the status until it is released.
func TestADeploymentIsHeldByItsName(t *testing.T) {
	s := installedSite(t)
	who := control.Caller{UID: 1000, User: "operator"}
	if _, err := s.agent.Hold(t.Context(), control.HoldRequest{Deployment: "nobody's", Caller: who}); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("the error is %v", err)
	}
	for _, name := range []string{"app", strings.ToUpper(first[:8]), first} {
		lock, err := s.agent.Hold(t.Context(), control.HoldRequest{Deployment: name, Reason: "bearings", Caller: who})
		if err != nil || lock.Deployment != first || lock.Holder != "operator" {
			t.Errorf("%q is held by %+v, %v", name, lock, err)
		}
	}
	locks := func() []control.Lock {
		return s.fullStatus().Locks
	}
	s.restart()
	if got := locks(); len(got) != 1 || got[0].Deployment != first || got[0].Reason != "bearings" {
		t.Errorf("the locks are %+v", got)
	}
	if released, err := s.agent.Release(t.Context(), control.ReleaseRequest{Caller: who}); err != nil || len(released) != 1 {
		t.Errorf("released are %+v, %v", released, err)
	}
	if got := locks(); len(got) != 0 {
		t.Errorf("the locks are %+v", got)
	}
}

// The directory for the lock files of a deployment comes and goes with it, and is
// removed at the next start where that was not possible.
func TestTheDirectoryOfLockFilesGoesWithItsDeployment(t *testing.T) {
	s := newSite(t)
	locks := filepath.Join(s.runDir, "locks")
	dirs := func() int {
		all, err := os.ReadDir(locks)
		check(t, err)
		return len(all)
	}
	s.installed()
	if dirs() != 1 {
		t.Fatal("an installed deployment has no directory for lock files")
	}
	s.publish(2, nil)
	s.heard(first, append(installed, "removing@2", "removed@2")...)
	if n := dirs(); n != 0 {
		t.Errorf("%d directories are left of a removed deployment", n)
	}
	s.stop()
	if err := os.Mkdir(filepath.Join(locks, second), 0o777); err != nil { // of one that went while the agent was killed
		t.Fatal(err)
	}
	s.start()
	s.eventually("the directory of what is gone is removed", func() bool { return dirs() == 0 })
}
