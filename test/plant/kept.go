package plant

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
	"github.com/margolite/margolite/test/leftovers"
)

// NewForTest is New in a directory of its own, with the agent of ProgramsDir unless
// another one is given. When the test ends everything does, and is removed.
func NewForTest(t testing.TB, o Options) *Plant {
	t.Helper()
	dir := expect.Value(os.MkdirTemp("/tmp", "plant-"))(t) // paths of sockets are short
	o.Dir, o.Margolite = dir, cmp.Or(o.Margolite, filepath.Join(ProgramsDir(), "margolite"))
	p, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(dir)))
	}
	t.Cleanup(func() {
		p.ShowLog(t)
		expect.OK(t, errors.Join(p.Close(), isolated.ForgetNetwork(), os.RemoveAll(dir)))
	})
	return p
}

// ShowLog shows the end of what the agent logged, if the test has failed.
func (p *Plant) ShowLog(t testing.TB) {
	t.Helper()
	if t.Failed() {
		log, _ := os.ReadFile(p.LogFile()) // there may be none
		t.Logf("agent's log:\n%s", log[max(0, len(log)-24<<10):])
	}
}

// Require ends the test unless something succeeds soon, as Eventually has it.
func Require(t testing.TB, what string, try func() error) {
	t.Helper()
	if err := Eventually(t.Context(), try); err != nil {
		t.Fatalf("not so: %s: %v", what, err)
	}
}

// Look takes stock of the machine, and of the containerd of the device if that runs.
func (p *Plant) Look(t testing.TB) leftovers.Snapshot {
	t.Helper()
	const namespace = "margo"
	where := leftovers.Where{Namespace: namespace, StateDir: p.StateDir(), RunDir: p.RunDir(), Sockets: filepath.Join(ShimDir, "s")}
	if p.Running() || p.Containerd() != 0 {
		client := expect.Value(containerd.Open(p.Containers(), namespace))(t)
		defer client.Close()
		where.Client = client
	}
	return leftovers.Take(t, where)
}

// Left says in what the machine differs from before, a line for each.
func (p *Plant) Left(t testing.TB, before leftovers.Snapshot) []string {
	t.Helper()
	return slices.DeleteFunc(before.Differences(p.Look(t)), p.keeps)
}

// keeps says of a difference that it is none: what the agent remembers of its WFM, of a
// repository and of what it did, what containerd makes when it first needs it, and
// sockets and the like of an agent that has stopped.
func (p *Plant) keeps(difference string) bool {
	file, left := strings.CutPrefix(difference, "left: file ")
	if !left {
		return strings.HasPrefix(difference, "gone: file ")
	}
	switch name, _ := filepath.Rel(p.StateDir(), file); name {
	case "accepted.json", "journal.json", "settings.json", "margolite.db.bad", "margolite.db.closed", "containerd/closed",
		"containerd/io.containerd.snapshotter.v1.overlayfs/metadata.db":
		return true
	default:
		return strings.HasPrefix(name, "git/") || strings.HasPrefix(name, "git-reports/")
	}
}
