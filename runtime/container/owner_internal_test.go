package container

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

// An update of the device's software may mount the state directory elsewhere.
func TestAnOwnerIsKnownWhereItsStateIsMountedElsewhere(t *testing.T) {
	own, other := t.TempDir(), t.TempDir()
	elsewhere := filepath.Join(other, "elsewhere")
	check(t, os.Symlink(own, elsewhere))
	r := &records{owner: own}
	for dir, want := range map[string]bool{own: true, elsewhere: true, other: false, filepath.Join(other, "none"): false, "": false} {
		expect.Equal(t, r.isOwner(dir), want, "%s", dir)
	}
}
