package store_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/isolated"
)

// outgrown is a store that had 16 MB of artifacts, and keeps some of them.
func outgrown(t *testing.T, keep int) (f *fixture, kept map[digest.Digest][]byte) {
	f = newFixture(t)
	all, kept, needed := make(map[digest.Digest][]byte), make(map[digest.Digest][]byte), make(map[digest.Digest]bool)
	random := rand.NewChaCha8([32]byte{})
	for range 256 {
		data := make([]byte, 64<<10)
		_, _ = random.Read(data)
		d := digest.FromBytes(data)
		all[d] = data
		if len(kept) < keep {
			kept[d], needed[d] = data, true
		}
	}
	f.commit(store.Change{Artifacts: all})
	expect.Value(f.PruneArtifacts(needed))(t)
	f.commit(store.Change{
		Manifest: &store.Manifest{Version: 7, ETag: "e"}, Deployments: []store.Deployment{fullDeployment("a"), fullDeployment("b")},
		Settings: map[string][]byte{"s": []byte("v")},
		Reports:  []store.Report{{Deployment: "a", Body: []byte("one")}, {Deployment: "b", Body: []byte("two")}},
		Journal:  []store.Entry{{Kind: "k"}, {Kind: "l"}},
	})
	check(t, f.AckReports(1))
	return f, kept
}

func (f *fixture) size() int64 {
	f.t.Helper()
	info := expect.Value(os.Stat(f.path))(f.t)
	return info.Size()
}

// What was needed for a while does not take the space of a small medium for good,
// and nothing is lost or changed when it is given back.
func TestADatabaseThatIsMostlyEmptyGetsSmallerWithTheNextStart(t *testing.T) {
	f, kept := outgrown(t, 3)
	before := f.size()
	deployments := expect.Value(f.Deployments())(t)
	f.close()
	// A power cut while it was made smaller.
	check(t, os.WriteFile(f.path+".compact", bytes.Repeat([]byte("x"), 100_000), 0o600))
	f.open()
	if after := f.size(); before < 16<<20 || after > 3<<20 {
		t.Errorf("it had %d bytes, and has %d", before, after)
	}
	expect.Error(t, expect.ErrorOf(os.Stat(f.path+".compact")), fs.ErrNotExist, "what a power cut left")
	same(t, "manifest", f.manifest(), store.Manifest{Version: 7, ETag: "e"})
	same(t, "deployments", expect.Value(f.Deployments())(t), deployments)
	for d, data := range kept {
		expect.Equal(t, expect.Value(f.Artifact(d))(t), data, "artifact %s", d)
	}
	same(t, "setting", f.setting("s"), "v")
	f.commit(store.Change{Reports: []store.Report{{Deployment: "a", Body: []byte("three")}}, Journal: []store.Entry{{Kind: "m"}}})
	var waiting []string
	for _, r := range f.reports(10) {
		waiting = append(waiting, fmt.Sprint(r.Sequence, " ", string(r.Body)))
	}
	same(t, "reports", waiting, []string{"2 two", "3 three"})
	f.sound(3, 1, 3)

	// Nothing is to be gained any more.
	now := snapshot(t, filepath.Dir(f.path))
	f.reopen()
	same(t, "files", snapshot(t, filepath.Dir(f.path)), now)
}

func TestADatabaseStaysAsLargeAsItIs(t *testing.T) {
	t.Run("where most of it is in use", func(t *testing.T) {
		f, _ := outgrown(t, 160)
		before := f.size()
		f.reopen()
		if after := f.size(); after < before {
			t.Errorf("it had %d bytes, and has %d", before, after)
		}
	})
	t.Run("where there is no space for a second one", func(t *testing.T) {
		f, _ := outgrown(t, 3)
		f.close()
		dir := isolated.Disk(t, "tmpfs", 24<<20)
		check(t, os.CopyFS(dir, os.DirFS(filepath.Dir(f.path))))
		var stat unix.Statfs_t
		check(t, unix.Statfs(dir, &stat))
		check(t, os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, int64(stat.Bavail)*stat.Bsize-1<<20), 0o600))
		s := expect.Value(store.Open(filepath.Join(dir, "margolite.db"), store.Options{}))(t)
		defer s.Close()
		entries, err := os.ReadDir(dir)
		if err != nil || slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return filepath.Ext(e.Name()) == ".compact" }) {
			t.Errorf("there are %v, %v", entries, err)
		}
		expect.OK(t, expect.ErrorOf(s.Deployment("a")))
	})
}

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
	expect.True(t, err == nil && len(left) == 0, "left behind: %v, %v", left, err)
}
