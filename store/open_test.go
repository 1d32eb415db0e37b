package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

// step is the n-th of a row of changes that touch every bucket.
func step(n uint64) store.Change {
	d, data := artifact(strings.Repeat(fmt.Sprint(n), 20_000))
	return store.Change{
		Manifest:    &store.Manifest{Version: n, ETag: fmt.Sprint(n), Scope: "s"},
		Artifacts:   map[digest.Digest][]byte{d: data},
		Deployments: []store.Deployment{{ID: "a", Adopted: n}},
		Reports:     []store.Report{{Deployment: "a", Body: fmt.Append(nil, n)}},
		Settings:    map[string][]byte{"n": fmt.Append(nil, n)},
	}
}

// isAtStep says whether all of step n is there and nothing of the next.
func (f *fixture) isAtStep(n uint64) {
	f.t.Helper()
	same(f.t, "version", f.manifest().Version, n)
	same(f.t, "deployments", expect.Value(f.Deployments())(f.t), []store.Deployment{{ID: "a", Adopted: n}})
	same(f.t, "setting", f.setting("n"), fmt.Sprint(n))
	reports := f.reports(100)
	expect.True(f.t, uint64(len(reports)) == n && reports[n-1].Sequence == n, "the reports are not those of step %d: %v", n, reports)
	for i := uint64(1); i <= n+1; i++ {
		d, data := artifact(strings.Repeat(fmt.Sprint(i), 20_000))
		if i > n {
			expect.True(f.t, !f.HasArtifact(d), "there is an artifact of step %d", i)
		} else if got, err := f.Artifact(d); err != nil || !bytes.Equal(got, data) {
			f.t.Errorf("artifact of step %d: %v", i, err)
		}
	}
}

func TestAPowerCutAfterAnyCommitLosesNothing(t *testing.T) {
	noted := func(n uint64) store.Change {
		c := step(n)
		c.Journal = []store.Entry{note(int(n))}
		return c
	}
	source := filepath.Join(t.TempDir(), "state")
	path := filepath.Join(source, "margolite.db")
	var cuts []string
	cut := func() {
		dir := t.TempDir()
		expect.OK(t, os.CopyFS(dir, os.DirFS(source)))
		cuts = append(cuts, dir)
	}
	var s *store.Store
	s = expect.Value(store.Open(path, store.Options{OnCommit: func(string) {
		m, _, _ := s.Manifest() // it may be read
		same(t, "version", m.Version, uint64(len(cuts)/2+1))
		cut() // the database is written, the files beside it are not yet
	}}))(t)
	s.OnAppend(func(store.Entry) { cut() }) // so is the one of the journal
	const steps = 5
	for n := range uint64(steps) {
		check(t, s.Commit("step", noted(n+1)))
	}
	check(t, s.Close())
	same(t, "cuts", len(cuts), 2*steps)
	for i, dir := range cuts {
		f := &fixture{t: t, path: filepath.Join(dir, "margolite.db")}
		n := uint64(i/2 + 1)
		switch i {
		case 3: // it went while the file of the journal was made
			check(t, os.WriteFile(f.journalFile()+".new", []byte(`{"anch`), 0o600))
		case 5: // or overwritten, on a medium that tears a sector
			torn := expect.Value(os.ReadFile(f.journalFile()))(t)
			copy(torn[100:], make([]byte, 200))
			check(t, os.WriteFile(f.journalFile(), torn, 0o600))
		}
		f.open()
		f.isAtStep(n)
		f.sound(n, 1, n)
		// The files caught up, and the same change is not written twice.
		if file := string(expect.Value(os.ReadFile(f.journalFile()))(t)); !strings.Contains(file, fmt.Sprintf(`"head":{"sequence":%d,`, n)) {
			t.Errorf("the file of the journal has not caught up: %s", file)
		}
		again := step(n)
		again.Reports = nil
		f.commit(again)
		same(t, "transactions", f.Writes(), int64(0))
		f.commit(noted(n + 1))
		f.isAtStep(n + 1)
		f.sound(n+1, 1, n+1)
		f.close()
		checkConsistency(t, f.path)
	}
}

func TestAPowerCutWithinACommitLosesOnlyThatCommit(t *testing.T) {
	f := newFixture(t)
	f.commit(step(1))
	f.commit(step(2))
	before := expect.Value(os.ReadFile(f.path))(t)
	f.commit(step(3))
	after := expect.Value(os.ReadFile(f.path))(t)
	f.close()

	const page = 4096
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 50 {
		// Any of the data pages may have reached the medium in any order, as
		// a whole or in part; the meta page is written after all of them.
		cut := bytes.Clone(after)
		copy(cut[:2*page], before)
		for at := 2 * page; at < len(before); at += page {
			if keep := random.IntN(3); keep > 0 {
				copy(cut[at:at+page/keep], before[at:])
			}
		}
		if i%2 == 0 { // the meta page is torn
			copy(cut[:40], after[:40])
			copy(cut[page:page+40], after[page:])
			copy(cut[2*page:], after[2*page:])
		}
		check(t, os.WriteFile(f.path, cut, 0o600))
		check(t, os.Remove(f.acceptedFile()))
		f.open()
		f.isAtStep(2)
		f.close()
		checkConsistency(t, f.path)
	}
}

func TestWhatIsNoFileIsAnError(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	check(t, os.WriteFile(file, nil, 0o600))
	for name, path := range map[string]string{"a directory": dir, "a file on the way": filepath.Join(file, "margolite.db")} {
		if _, err := store.Open(path, store.Options{}); err == nil || errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func fill(data []byte, with byte) {
	for i := range data {
		data[i] = with
	}
}

func FuzzOpen(f *testing.F) {
	seed := &fixture{t: f, path: filepath.Join(f.TempDir(), "margolite.db")}
	seed.open()
	seed.commit(store.Change{Deployments: []store.Deployment{{ID: "a"}}, Settings: map[string][]byte{"s": nil}, Reports: []store.Report{{}}})
	seed.close()
	f.Add(expect.Value(os.ReadFile(seed.path))(f))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "margolite.db")
		check(t, os.WriteFile(path, data, 0o600))
		s, err := store.Open(path, store.Options{Apart: apart})
		if err != nil {
			return
		}
		if _, err := s.Deployments(); err == nil {
			_ = s.Commit("test", step(1))
		}
		expect.OK(t, s.Close())
		checkConsistency(t, path)
	})
}
