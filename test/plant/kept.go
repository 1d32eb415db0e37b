package plant

import (
	"path/filepath"
	"strings"
)

// Keeps says of a difference between two snapshots of the machine (package
// leftovers) that it is none: what the agent remembers of its WFM, of a
// repository and of what it did, what containerd makes when it first needs it,
// and sockets and the like of an agent that has stopped.
func (p *Plant) Keeps(difference string) bool {
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
