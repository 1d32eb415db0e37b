package agent_test

import (
	"os"
	"path/filepath"
	"testing"
)

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
