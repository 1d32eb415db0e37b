package store_test

import (
	"errors"
	"os"
	"testing"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"

	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// loseDatabase removes the database, as after its corruption.
func (f *fixture) loseDatabase() {
	f.t.Helper()
	f.close()
	check(f.t, os.Remove(f.path))
	f.open()
}

func (f *fixture) writeAccepted(content string) {
	f.t.Helper()
	check(f.t, os.WriteFile(f.acceptedFile(), []byte(content), 0o600))
}

func (f *fixture) manifest() store.Manifest {
	f.t.Helper()
	m, known, err := f.Manifest()
	expect.Require(f.t, err == nil && known, "got %v, %v", known, err)
	return m
}

func TestDS08TheAcceptedVersionOutlivesTheDatabase(t *testing.T) {
	f := newFixture(t)
	f.commit(store.Change{Manifest: &store.Manifest{Version: 41, ETag: "e", Digest: digest.FromString("m"), Scope: "s"}})
	f.loseDatabase()
	same(t, "manifest without its ETag", f.manifest(), store.Manifest{Version: 41, Digest: digest.FromString("m"), Scope: "s"})

	f.commit(store.Change{Manifest: &store.Manifest{Version: 41, ETag: "e", Digest: digest.FromString("m"), Scope: "s"}})
	same(t, "ETag once the database has it again", f.manifest().ETag, "e")
}

func TestTheGreaterVersionOfOneScopeCounts(t *testing.T) {
	for _, test := range []struct {
		name, file string
		want       store.Manifest
	}{
		{"an older file", `{"version":9,"scope":"s"}`, store.Manifest{Version: 10, ETag: "e", Scope: "s"}},
		{"a newer file", `{"version":11,"scope":"s"}`, store.Manifest{Version: 11, Scope: "s"}},
		{"a file above what a float can tell apart", `{"version":18446744073709551615,"scope":"s"}`, store.Manifest{Version: 1<<64 - 1, Scope: "s"}},
		{"a greater epoch with a lower version", `{"epoch":1,"version":3,"scope":"s"}`, store.Manifest{Epoch: 1, Version: 3, Scope: "s"}},
		{"a file of another scope", `{"version":99,"scope":"other"}`, store.Manifest{Version: 10, ETag: "e", Scope: "s"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t)
			f.commit(store.Change{Manifest: &store.Manifest{Version: 10, ETag: "e", Scope: "s"}})
			f.writeAccepted(test.file)
			same(t, "manifest", f.manifest(), test.want)
			f.reopen()
			same(t, "manifest after reopening", f.manifest(), test.want)
			f.loseDatabase()
			test.want.ETag = ""
			same(t, "manifest after the database was lost", f.manifest(), test.want)
		})
	}
}

// What was accepted before there were epochs is of epoch 0, and stays readable
// for the version that wrote it until an operator resets.
func TestManifestsWithoutEpochAreOfEpochZero(t *testing.T) {
	f := newFixture(t)
	f.edit(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("manifest")).Put([]byte("accepted"), []byte(`{"version":10,"etag":"e","scope":"s"}`))
	})
	f.open()
	same(t, "manifest", f.manifest(), store.Manifest{Version: 10, ETag: "e", Scope: "s"})
	f.commit(store.Change{Manifest: &store.Manifest{Version: 11, Scope: "s"}})
	same(t, "file", string(expect.Value(os.ReadFile(f.acceptedFile()))(t)), `{"version":11,"scope":"s"}`+"\n")
	f.commit(store.Change{Manifest: &store.Manifest{Epoch: 1, Version: 11, Scope: "s"}})
	same(t, "file after a reset", string(expect.Value(os.ReadFile(f.acceptedFile()))(t)), `{"epoch":1,"version":11,"scope":"s"}`+"\n")
}

func TestADatabaseWhoseManifestIsRottenLeavesTheFile(t *testing.T) {
	f := newFixture(t)
	f.commit(store.Change{Manifest: &store.Manifest{Version: 10, ETag: "e", Scope: "s"}})
	f.edit(func(tx *bolt.Tx) error { return tx.Bucket([]byte("manifest")).Put([]byte("accepted"), []byte("10")) })
	f.open()
	m, known, err := f.Manifest()
	expect.True(t, known && errors.Is(err, store.ErrCorrupt), "got %v, %v", known, err)
	same(t, "manifest", m, store.Manifest{Version: 10, Scope: "s"})
}

func TestAFileThatCannotBeWrittenDoesNotUndoTheCommit(t *testing.T) {
	f := newFixture(t)
	inTheWay := f.acceptedFile() + ".new"
	check(t, os.Mkdir(inTheWay, 0o700))
	change := store.Change{Manifest: &store.Manifest{Version: 1}, Deployments: []store.Deployment{{ID: "a"}}}
	expect.Error(t, f.Commit("accept", change), store.ErrAside, "error")
	same(t, "version", f.manifest().Version, uint64(1))
	check(t, os.RemoveAll(inTheWay))
	f.commit(change)
	same(t, "transactions", f.Writes(), int64(1))
	f.loseDatabase()
	same(t, "version after the database was lost", f.manifest().Version, uint64(1))
}
