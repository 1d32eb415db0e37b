package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"

	"github.com/margolite/margolite/test/expect"
)

// removal notes until when a snapshot may be removed.
type removal struct {
	snapshots.Snapshotter
	at, until time.Time
}

func (r *removal) Remove(ctx context.Context, _ string) error {
	r.at = time.Now()
	r.until, _ = ctx.Deadline()
	return ctx.Err()
}

// However long it takes to empty a snapshot, there is time left to remove it.
func TestASnapshotThatIsSlowlyEmptiedIsRemoved(t *testing.T) {
	dir := t.TempDir()
	for n := range 1000 {
		expect.Check(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(n)), nil, 0o600))
	}
	var r removal
	begun := time.Now()
	expect.Check(t, discard(t.Context(), &r, "key", []mount.Mount{{Type: "bind", Source: dir}}))
	if left, took := r.until.Sub(begun)-cleanTimeout, r.at.Sub(begun); left < took/2 {
		t.Errorf("emptying took %s, removal may take %s", took, cleanTimeout+left-took)
	}
}
