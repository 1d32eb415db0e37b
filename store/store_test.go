package store_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"

	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// fixture is a store in a directory of its own. The database is checked for
// consistency when the test ends.
type fixture struct {
	*store.Store
	t       testing.TB
	path    string
	passing []string // settings
	commits []string
}

func newFixture(t testing.TB, passing ...string) *fixture {
	t.Helper()
	f := &fixture{t: t, path: filepath.Join(t.TempDir(), "state", "margolite.db"), passing: passing}
	f.open()
	t.Cleanup(func() {
		_ = f.Close()
		checkConsistency(t, f.path)
	})
	return f
}

func (f *fixture) open() {
	f.t.Helper()
	f.Store = expect.Value(store.Open(f.path, store.Options{Apart: apart, Passing: f.passing, OnCommit: func(verb string) { f.commits = append(f.commits, verb) }}))(f.t)
}

func (f *fixture) close() {
	f.t.Helper()
	check(f.t, f.Close())
}

func (f *fixture) reopen() {
	f.t.Helper()
	f.close()
	f.open()
}

func (f *fixture) commit(c store.Change) {
	f.t.Helper()
	check(f.t, f.Commit("test", c))
}

// reports are up to limit that wait, with their bodies.
func (f *fixture) reports(limit int) []store.Report {
	f.t.Helper()
	reports := expect.Value(f.Reports(0, limit))(f.t)
	for i := range reports {
		reports[i].Body = expect.Value(f.ReportBody(reports[i].Sequence))(f.t)
	}
	return reports
}

// setting is one that is set.
func (f *fixture) setting(name string) string {
	f.t.Helper()
	value, set, err := f.Setting(name)
	expect.Equal(f.t, set, true, "setting %q is set", name)
	return string(expect.Value(value, err)(f.t))
}

// edit changes the closed database behind the store's back, records without their
// sums: what is changed passes for what was written.
func (f *fixture) edit(change func(tx *bolt.Tx) error) {
	f.t.Helper()
	f.forge(func(tx *bolt.Tx) error { return errors.Join(change(tx), store.Reseal(tx)) })
}

// forge is edit that leaves sums and the seal to the change.
func (f *fixture) forge(change func(tx *bolt.Tx) error) {
	f.t.Helper()
	f.close()
	db := expect.Value(bolt.Open(f.path, 0o600, &bolt.Options{NoFreelistSync: true}))(f.t)
	check(f.t, errors.Join(db.Update(change), db.Close()))
}

func (f *fixture) acceptedFile() string {
	return filepath.Join(filepath.Dir(f.path), "accepted.json")
}

func checkConsistency(t testing.TB, path string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		t.Errorf("cannot check the database: %v", err)
		return
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			t.Errorf("the database is inconsistent: %v", err)
		}
		return nil
	})
	expect.OK(t, err)
}

var check = expect.Check

func same(t testing.TB, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// corrupt expects an error that says what is damaged.
func corrupt(t testing.TB, err error, parts ...string) {
	t.Helper()
	expect.Error(t, err, store.ErrCorrupt, "error")
	for _, part := range parts {
		expect.ErrorWith(t, err, part, "error")
	}
}

func artifact(s string) (digest.Digest, []byte) {
	return digest.FromString(s), []byte(s)
}

func fullDeployment(id string) store.Deployment {
	return store.Deployment{
		ID:    id,
		Phase: "settling",
		Desired: store.Revision{
			Digest:  digest.FromString("desired"),
			Version: 1<<63 + 1,
			Staged: []store.Staged{{
				Component: "web", Project: id + "-web", Package: digest.FromString("package"),
				Images: map[string]digest.Digest{"nginx:1": digest.FromString("image"), "redis": digest.FromString("other image")},
			}},
			Summary: &store.Summary{
				Reserved: store.Resources{CPUs: 0.5, Memory: 1 << 20, Storage: 1}, Unread: []string{"p"},
				Before: digest.FromString("active"), Effects: digest.FromString("effects"),
			},
		},
		Active:     &store.Revision{Digest: digest.FromString("active"), Version: 7},
		Adopted:    7,
		Components: []store.Component{{Name: "web", State: "failed", Fault: &store.Fault{Code: "301", Source: "web", Message: "no \"image\""}}},
		Fault:      &store.Fault{Code: "301"},
		Since:      time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC),
	}
}

func TestEverythingSurvivesReopening(t *testing.T) {
	f := newFixture(t)
	manifest := store.Manifest{Version: 1<<64 - 1, ETag: `"sha256:abc"`, Digest: digest.FromString("manifest"), Scope: "spiffe://example.org/wfm"}
	d, data := artifact("document")
	want := []store.Deployment{fullDeployment("a"), fullDeployment("b")}
	f.commit(store.Change{
		Manifest:    &manifest,
		Artifacts:   map[digest.Digest][]byte{d: data},
		Deployments: []store.Deployment{want[1], want[0]},
		Reports:     []store.Report{{Deployment: "a", Body: []byte("one")}, {Deployment: "b", Version: 1<<64 - 1, Weight: store.End, Body: []byte("two")}},
		Settings:    map[string][]byte{"set": []byte("value"), "empty": {}},
	})
	f.reopen()

	same(t, "manifest", f.manifest(), manifest)
	same(t, "deployments", expect.Value(f.Deployments())(t), want)
	same(t, "deployment", expect.Value(f.Deployment("b"))(t), want[1])
	same(t, "artifact", expect.Value(f.Artifact(d))(t), data)
	same(t, "reports", f.reports(10), []store.Report{
		{Sequence: 1, Deployment: "a", Body: []byte("one")},
		{Sequence: 2, Deployment: "b", Version: 1<<64 - 1, Weight: store.End, Body: []byte("two")},
	})
	for name, want := range map[string][]byte{"set": []byte("value"), "empty": {}} {
		value, set, err := f.Setting(name)
		expect.True(t, err == nil && set && bytes.Equal(value, want), "setting %q is %q, %v, %v", name, value, set, err)
	}
	same(t, "transactions since Open", f.Writes(), int64(0))
	same(t, "commits", f.commits, []string{"test"})
}

func TestANewStoreIsEmpty(t *testing.T) {
	f := newFixture(t)
	if m, known, err := f.Manifest(); known || err != nil {
		t.Errorf("there is a manifest: %v, %v", m, err)
	}
	same(t, "deployments", len(expect.Value(f.Deployments())(t)), 0)
	same(t, "reports", len(f.reports(10)), 0)
	expect.Error(t, expect.ErrorOf(f.ReportBody(1)), store.ErrNotFound, "a report")
	expect.Error(t, expect.ErrorOf(f.Deployment("a")), store.ErrNotFound, "a deployment")
	expect.Error(t, expect.ErrorOf(f.Artifact(digest.FromString("a"))), store.ErrNotFound, "an artifact")
	if value, set, err := f.Setting("a"); value != nil || set || err != nil {
		t.Errorf("got %q, %v, %v for a setting", value, set, err)
	}
	same(t, "pruned", expect.Value(f.PruneArtifacts(nil))(t), 0)
	expect.True(t, !f.HasArtifact(digest.FromString("a")) && !f.HasArtifact(""), "there is an artifact")
}

func TestFilesAreForTheirOwnerOnly(t *testing.T) {
	f := newFixture(t)
	f.commit(store.Change{Manifest: &store.Manifest{Version: 1}})
	entries := expect.Value(os.ReadDir(filepath.Dir(f.path)))(t)
	expect.Equal(t, len(entries), 2, "something is left over: %v", entries)
	d := digest.FromString("one")
	check(t, f.receive(d, "x"))
	incoming := filepath.Join(filepath.Dir(f.path), "incoming")
	for path, want := range map[string]os.FileMode{
		filepath.Dir(f.path): 0o700, f.path: 0o600, f.acceptedFile(): 0o600, incoming: 0o700, filepath.Join(incoming, "sha256-"+d.Encoded()): 0o600,
	} {
		expect.Equal(t, expect.Value(os.Stat(path))(t).Mode().Perm(), want, "%s has mode", path)
	}
}

func TestForgottenAndDeletedRecordsAreGone(t *testing.T) {
	f := newFixture(t)
	f.commit(store.Change{
		Deployments: []store.Deployment{{ID: "a"}, {ID: "b"}},
		Reports:     []store.Report{{Deployment: "a", Body: []byte("removed"), Weight: store.End}},
		Settings:    map[string][]byte{"s": []byte("v")},
	})
	f.commit(store.Change{Forget: []string{"a", "never there"}, Settings: map[string][]byte{"s": nil, "t": nil}})
	f.reopen()
	same(t, "deployments", expect.Value(f.Deployments())(t), []store.Deployment{{ID: "b"}})
	if _, set, _ := f.Setting("s"); set {
		t.Error("the setting is still there")
	}
	same(t, "reports, with that about the forgotten deployment", len(f.reports(10)), 1)
}

func TestWhatDoesNotDifferIsNotWritten(t *testing.T) {
	f := newFixture(t)
	d, data := artifact(strings.Repeat("package", 100_000))
	deployment := fullDeployment("a")
	change := store.Change{
		Manifest:    &store.Manifest{Version: 2, ETag: "e", Digest: digest.FromString("m"), Scope: "s"},
		Artifacts:   map[digest.Digest][]byte{d: data},
		Deployments: []store.Deployment{deployment},
		Settings:    map[string][]byte{"a": []byte("b"), "c": {}},
		Journal:     []store.Entry{note(1), note(2)},
	}
	f.commit(change)
	f.reopen()
	before := snapshot(t, filepath.Dir(f.path))

	// The same again, also where it is spelled in another way.
	change.Deployments[0].Since = deployment.Since.In(time.FixedZone("CET", 3600))
	change.Deployments[0].Active.Staged = []store.Staged{}
	change.Forget = []string{"unknown"}
	change.Settings["unknown"] = nil
	change.Journal = []store.Entry{}
	for range 100 {
		f.commit(change)
	}
	f.commit(store.Change{})
	check(t, f.AckReports())
	check(t, f.AckReports(1, 2, 3))
	same(t, "pruned", expect.Value(f.PruneArtifacts(map[digest.Digest]bool{d: true}))(t), 0)
	f.sound(2, 1, 2)
	f.journal(store.JournalFilter{})

	same(t, "transactions", f.Writes(), int64(0))
	same(t, "commits", f.commits, []string{"test"})
	same(t, "files", snapshot(t, filepath.Dir(f.path)), before)
}

func TestAnImpossibleChangeChangesNothing(t *testing.T) {
	long := strings.Repeat("x", 2<<20)
	good, data := artifact("good")
	for name, c := range map[string]store.Change{
		"an artifact with another digest":  {Artifacts: map[digest.Digest][]byte{good: []byte("bad")}},
		"an artifact without a digest":     {Artifacts: map[digest.Digest][]byte{"": data}},
		"an artifact with a broken digest": {Artifacts: map[digest.Digest][]byte{"sha256:12": data}},
		"a deployment without id":          {Deployments: []store.Deployment{{}}},
		"a deployment with a long id":      {Deployments: []store.Deployment{{ID: long[:513]}}},
		"a deployment that is too large":   {Deployments: []store.Deployment{{ID: "a", Phase: long}}},
		"a deployment twice":               {Deployments: []store.Deployment{{ID: "a"}, {ID: "a"}}},
		"a deployment put and forgotten":   {Deployments: []store.Deployment{{ID: "a"}}, Forget: []string{"a"}},
		"a broken digest of a document":    {Deployments: []store.Deployment{{ID: "a", Desired: store.Revision{Digest: "md5:1"}}}},
		"a broken digest of an image": {Deployments: []store.Deployment{{ID: "a", Active: &store.Revision{
			Staged: []store.Staged{{Images: map[string]digest.Digest{"a": "sha256:"}}},
		}}}},
		"a broken digest of effects":      {Deployments: []store.Deployment{{ID: "a", Desired: store.Revision{Summary: &store.Summary{Effects: "x"}}}}},
		"a manifest with a broken digest": {Manifest: &store.Manifest{Digest: "x"}},
		"a report that is too large":      {Reports: []store.Report{{Body: []byte(long)}}},
		"a report about a long id":        {Reports: []store.Report{{Deployment: long[:513]}}},
		"a report of unknown weight":      {Reports: []store.Report{{Weight: store.End + 1}}},
		"a setting without name":          {Settings: map[string][]byte{"": {}}},
		"a setting that is too large":     {Settings: map[string][]byte{"a": []byte(long)}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			before := snapshot(t, filepath.Dir(f.path))
			// Something good comes along, and is refused with the rest.
			if c.Artifacts == nil {
				c.Artifacts = map[digest.Digest][]byte{good: data}
			}
			if err := f.Commit("test", c); err == nil {
				t.Error("it was possible")
			} else if len(err.Error()) > 2000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			same(t, "transactions", f.Writes(), int64(0))
			same(t, "files", snapshot(t, filepath.Dir(f.path)), before)
		})
	}
	f := newFixture(t)
	expect.Error(t, f.Commit("test", store.Change{Artifacts: map[digest.Digest][]byte{good: []byte("bad")}}), store.ErrCorrupt, "an artifact with another digest")
}

func TestArtifactsOfAnySize(t *testing.T) {
	f := newFixture(t)
	content := make([]byte, 3<<20)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(content)
	const chunk = 256 << 10
	for _, size := range []int{0, 1, 100, 4096, chunk - 1, chunk, chunk + 1, 2 * chunk, 3 << 20} {
		data := content[:size]
		d := digest.FromBytes(data)
		f.commit(store.Change{Artifacts: map[digest.Digest][]byte{d: data}})
		expect.Equal(t, f.HasArtifact(d), true, "there is an artifact of %d bytes", size)
		expect.Equal(t, bytes.Equal(expect.Value(f.Artifact(d))(t), data), true, "the artifact of %d bytes is whole", size)
	}
	f.edit(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("artifacts")).ForEachBucket(func(key []byte) error {
			return tx.Bucket([]byte("artifacts")).Bucket(key).ForEach(func(_, value []byte) error {
				expect.True(t, len(value) <= chunk, "there is a chunk of %d bytes", len(value))
				return nil
			})
		})
	})
	f.open()
}

func TestPruningKeepsWhatIsToBeKept(t *testing.T) {
	f := newFixture(t)
	a, dataA := artifact("a")
	b, dataB := artifact(strings.Repeat("b", 1<<20))
	c, dataC := artifact("c")
	f.commit(store.Change{Artifacts: map[digest.Digest][]byte{a: dataA, b: dataB, c: dataC}})
	keep := map[digest.Digest]bool{a: true, c: false, digest.FromString("unknown"): true}
	same(t, "pruned", expect.Value(f.PruneArtifacts(keep))(t), 2)
	same(t, "present", []bool{f.HasArtifact(a), f.HasArtifact(b), f.HasArtifact(c)}, []bool{true, false, false})
	same(t, "commits", f.commits, []string{"test", "prune artifacts"})
	expect.Error(t, expect.ErrorOf(f.Artifact(b)), store.ErrNotFound, "a pruned artifact")
}

func TestARottenArtifactIsNoticedAndMended(t *testing.T) {
	d, data := artifact(strings.Repeat("x", 300<<10))
	for name, damage := range map[string]func(b *bolt.Bucket) error{
		"a changed chunk": func(b *bolt.Bucket) error { return b.Put([]byte{0, 0, 0, 1}, []byte("y")) },
		"a missing chunk": func(b *bolt.Bucket) error { return b.Delete([]byte{0, 0, 0, 0}) },
		"an extra chunk":  func(b *bolt.Bucket) error { return b.Put([]byte{0, 0, 0, 2}, []byte("x")) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.commit(store.Change{Artifacts: map[digest.Digest][]byte{d: data}})
			f.edit(func(tx *bolt.Tx) error { return damage(tx.Bucket([]byte("artifacts")).Bucket([]byte(d))) })
			f.open()
			expect.Error(t, expect.ErrorOf(f.Artifact(d)), store.ErrCorrupt, "error")
			f.commit(store.Change{Artifacts: map[digest.Digest][]byte{d: data}})
			same(t, "it is not mended", expect.Value(f.Artifact(d))(t), data)
		})
	}
}

func TestReportsKeepTheirOrder(t *testing.T) {
	f := newFixture(t)
	for i := range 5 {
		f.commit(store.Change{Reports: []store.Report{
			{Sequence: 99, Deployment: "a", Body: fmt.Append(nil, 2*i+1)},
			{Sequence: 98, Deployment: "b", Body: fmt.Append(nil, 2*i+2)},
		}})
	}
	bodies := func(limit int) (s string) {
		for _, r := range f.reports(limit) {
			expect.Equal(t, fmt.Sprint(r.Sequence), string(r.Body), "report %s has sequence %d", r.Body, r.Sequence)
			s += string(r.Body) + " "
		}
		return s
	}
	same(t, "none", bodies(0), "")
	same(t, "the first", bodies(3), "1 2 3 ")
	check(t, f.AckReports(1, 3, 3, 77))
	same(t, "the next", bodies(3), "2 4 5 ")
	check(t, f.AckReports(10, 9, 8, 7, 6, 5, 4, 2))
	same(t, "commits", f.commits[5:], []string{"acknowledge reports", "acknowledge reports"})
	f.reopen()
	same(t, "nothing is left", bodies(3), "")
	f.commit(store.Change{Reports: []store.Report{{Body: []byte("11")}}})
	same(t, "sequences go on after all are gone", bodies(3), "11 ")
}

func TestARottenRecordComesBesideTheGoodOnes(t *testing.T) {
	f := newFixture(t)
	f.commit(store.Change{
		Deployments: []store.Deployment{{ID: "a"}, {ID: "b"}, {ID: "c"}},
		Reports:     []store.Report{{Body: []byte("1")}, {Body: []byte("2")}, {Body: []byte("3")}},
	})
	f.edit(func(tx *bolt.Tx) error {
		return errors.Join(
			tx.Bucket([]byte("deployments")).Put([]byte("a"), []byte("{")),
			tx.Bucket([]byte("deployments")).Put([]byte("c"), []byte(`{"phase":"","desired":{},"surprise":1}`)),
			tx.Bucket([]byte("outbox")).Put([]byte{0, 0, 0, 0, 0, 0, 0, 1}, []byte("without a weight")),
			tx.Bucket([]byte("outbox")).Put(append(make([]byte, 7), 2, 9, 0, 0, 0, 0, 0, 0, 0, 0), []byte("of no known weight")),
			tx.Bucket([]byte("outbox")).Put([]byte{0, 0, 0, 0, 0, 0, 0, 3, 0}, []byte("without a version")),
		)
	})
	f.open()

	deployments, err := f.Deployments()
	same(t, "deployments", deployments, []store.Deployment{{ID: "b"}})
	corrupt(t, err, `"a"`, `"c"`)
	expect.Error(t, expect.ErrorOf(f.Deployment("a")), store.ErrCorrupt, "a rotten deployment")
	reports, err := f.Reports(0, 3)
	same(t, "reports", reports, []store.Report{{Sequence: 1}, {Sequence: 2}, {Sequence: 3}})
	corrupt(t, err, "report 0000000000000001:", "report 0000000000000002090")

	f.commit(store.Change{Deployments: []store.Deployment{{ID: "a"}}, Forget: []string{"c"}, Reports: []store.Report{{}}})
	expect.Error(t, expect.ErrorOf(f.Deployments()), nil, "deployments are not mended")
	same(t, "reports of the mended outbox", len(f.reports(10)), 4)
}

func TestTheSameDatabaseOpensOnce(t *testing.T) {
	f := newFixture(t)
	expect.Error(t, expect.ErrorOf(store.Open(f.path, store.Options{})), store.ErrLocked, "error")
	f.commit(store.Change{Settings: map[string][]byte{"a": {}}})
}

func TestReadersAndWritersMayRunTogether(t *testing.T) {
	f := newFixture(t)
	d, data := artifact(strings.Repeat("x", 1<<20))
	var group sync.WaitGroup
	for i := range 4 {
		id := fmt.Sprint(i)
		group.Go(func() {
			for n := range 10 {
				f.commit(store.Change{
					Manifest: &store.Manifest{Version: uint64(n)}, Deployments: []store.Deployment{{ID: id, Adopted: uint64(n)}},
					Reports: []store.Report{{Deployment: id}}, Artifacts: map[digest.Digest][]byte{d: data},
				})
			}
		})
		group.Go(func() {
			for range 50 {
				_, _ = f.Deployments()
				_, _, _ = f.Manifest()
				_, _ = f.Artifact(d)
				_ = f.Writes()
				_, _ = f.CountReports()
			}
		})
		group.Go(func() {
			for n := range uint64(10) {
				expect.OK(t, f.AckReports(n))
			}
		})
	}
	group.Wait()
	for _, d := range expect.Value(f.Deployments())(t) {
		expect.Equal(t, d.Adopted, 9, "deployment %s is at", d.ID)
	}
}

// snapshot describes all files of a directory to the byte.
func snapshot(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	for _, entry := range expect.Value(os.ReadDir(dir))(t) {
		data := expect.Value(os.ReadFile(filepath.Join(dir, entry.Name())))(t)
		info := expect.Value(entry.Info())(t)
		fmt.Fprintf(&b, "%s %x %v\n", entry.Name(), sha256.Sum256(data), info.ModTime())
	}
	return b.String()
}
