package store_test

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// A copy is the store as it was at one moment, whatever is written while it is read.
func TestACopyIsTheStoreOfOneMoment(t *testing.T) {
	f := newFixture(t)
	for n := range uint64(3) {
		check(t, f.Commit("test", step(n+1)))
	}
	copied := expect.Value(f.Copy(0))(t)
	defer copied.Close()
	check(t, f.Commit("test", step(4)))
	path := filepath.Join(t.TempDir(), "margolite.db")
	check(t, os.WriteFile(path, expect.Value(io.ReadAll(copied))(t), 0o600))
	c := &fixture{t: t, path: path}
	c.open()
	defer c.close()
	c.isAtStep(3)
	expect.Equal(t, c.isDamaged(), false, "the copy is damaged")
	expect.Error(t, expect.ErrorOf(f.Copy(math.MaxInt64/2)), store.ErrFull, "on a full disk it ends with")
	left, err := filepath.Glob(f.path + ".compact*")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
