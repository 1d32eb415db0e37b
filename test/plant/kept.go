package plant

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/leftovers"
)

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
		client, err := containerd.Open(p.Containers(), namespace)
		if err != nil {
			t.Fatal(err)
		}
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
