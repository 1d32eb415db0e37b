package store_test

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/store"
)

// A copy is the store as it was at one moment, whatever is written while it is read.
func TestACopyIsTheStoreOfOneMoment(t *testing.T) {
	f := newFixture(t)
	for n := range uint64(3) {
		check(t, f.Commit("test", step(n+1)))
	}
	copied := must[*os.File](t)(f.Copy(0))
	defer copied.Close()
	check(t, f.Commit("test", step(4)))
	path := filepath.Join(t.TempDir(), "margolite.db")
	check(t, os.WriteFile(path, must[[]byte](t)(io.ReadAll(copied)), 0o600))
	c := &fixture{t: t, path: path}
	c.open()
	defer c.close()
	c.isAtStep(3)
	if d, damaged := c.Damage(); damaged {
		t.Errorf("the copy is damaged: %+v", d)
	}
	if _, err := f.Copy(math.MaxInt64 / 2); !errors.Is(err, store.ErrFull) {
		t.Errorf("on a full disk it ends with %v", err)
	}
	left, err := filepath.Glob(f.path + ".compact*")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
