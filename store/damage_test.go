package store_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

const pageSize = 4096

// TestMain makes the test program the process that does jobs apart.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != "apart" {
		os.Exit(m.Run())
	}
	debug.SetMaxStack(32 << 20)
	// bbolt may come to no end; memory has no bound, since the race detector takes too much.
	err := unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: 5, Max: 5})
	if err = errors.Join(err, store.Work(os.Stdout, os.Args[2:]...)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// apart does jobs in processes of their own, as the program does.
func apart(job ...string) (io.ReadCloser, error) {
	cmd := exec.Command("/proc/self/exe", append([]string{"apart"}, job...)...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	return &process{out, cmd}, err
}

type process struct {
	io.ReadCloser
	cmd *exec.Cmd
}

func (p *process) Close() error {
	_ = p.ReadCloser.Close()
	err := p.cmd.Wait()
	if err != nil && p.cmd.ProcessState.ExitCode() != 1 {
		err = fmt.Errorf("%w: bbolt ended with %w", store.ErrCorrupt, err)
	}
	return err
}

// remains is a database with something in each bucket, and what was ever written.
type remains struct {
	files       map[string][]byte // of the directory, by name
	deployments map[string]map[string]bool
	reports     map[string]bool
	artifacts   []digest.Digest
	entries     map[string]bool

	last        []store.Deployment
	lastReports []store.Report
}

const steps = 6

// sample writes a database, each record several times.
func sample(t testing.TB) *remains {
	t.Helper()
	w := &remains{files: map[string][]byte{}, deployments: map[string]map[string]bool{}, reports: map[string]bool{}, entries: map[string]bool{}}
	f := newFixture(t)
	note := func() {
		w.last, w.lastReports = expect.Value(f.Deployments())(t), f.reports(1000)
		for _, d := range w.last {
			if w.deployments[d.ID] == nil {
				w.deployments[d.ID] = map[string]bool{}
			}
			w.deployments[d.ID][text(t, d)] = true
		}
		for _, r := range w.lastReports {
			w.reports[text(t, r)] = true
		}
		for _, e := range f.journal(store.JournalFilter{}) {
			w.entries[text(t, e)] = true
		}
	}
	for n := range uint64(steps) {
		c := step(n + 1)
		if n > 0 { // one of several pages is enough: most places are to mean something
			d, data := artifact(strings.Repeat(fmt.Sprint(n), 300))
			c.Artifacts = map[digest.Digest][]byte{d: data}
		}
		for d := range c.Artifacts {
			w.artifacts = append(w.artifacts, d)
		}
		for i := range 30 {
			d := fullDeployment(fmt.Sprint("d", i))
			d.Adopted = n
			c.Deployments = append(c.Deployments, d)
			c.Reports = append(c.Reports, report(d.ID, fmt.Sprint(n, " of ", d.ID), n, store.Step))
		}
		c.Settings["locks"] = fmt.Append(nil, "held ", n)
		c.Journal = []store.Entry{{Time: time.Unix(int64(n), 0), Kind: "k", Text: fmt.Sprint(n)}}
		f.commit(c)
		note()
	}
	check(t, f.AckReports(2, 3))
	note()
	f.close()
	for _, name := range []string{"margolite.db", "accepted.json", "settings.json", "journal.json"} {
		w.files[name] = expect.Value(os.ReadFile(filepath.Join(filepath.Dir(f.path), name)))(t)
	}
	// The room behind the last page is the same in all of them, and says nothing.
	w.files["margolite.db"] = w.files["margolite.db"][:(len(bytes.TrimRight(w.files["margolite.db"], "\x00"))/pageSize+1)*pageSize]
	return w
}

func text(t testing.TB, of any) string { return string(expect.Value(json.Marshal(of))(t)) }

// lay writes the directory of a device, and returns the path of its database; nil:
// there is none.
func (w *remains) lay(t testing.TB, database []byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range w.files {
		if name == "margolite.db" {
			data = database
		}
		if data == nil {
			continue
		}
		check(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	return filepath.Join(dir, "margolite.db")
}

// holds fails the test where the store says anything that was never written, or,
// unless it says that it was damaged, anything else than what was written last.
func (w *remains) holds(t testing.TB, s *store.Store) (damaged bool) {
	t.Helper()
	_, damaged = s.Damage()
	if m, known, err := s.Manifest(); err != nil || !known || m.Version != steps || m.Scope != "s" || damaged != (m.ETag == "") {
		t.Errorf("damaged %v: the manifest is %+v, %v", damaged, m, err)
	}
	for name, want := range map[string]string{"n": fmt.Sprint(steps), "locks": fmt.Sprint("held ", steps-1)} {
		if value, _, err := s.Setting(name); err != nil || string(value) != want {
			t.Errorf("damaged %v: setting %q is %q, %v", damaged, name, value, err)
		}
	}
	deployments, err := s.Deployments()
	expect.Error(t, err, nil, "damaged %v: deployments", damaged)
	for _, d := range deployments {
		expect.True(t, w.deployments[d.ID][text(t, d)], "damaged %v: deployment %q was never %+v", damaged, d.ID, d)
	}
	reports, err := s.Reports(0, 1000)
	expect.Error(t, err, nil, "damaged %v: reports", damaged)
	for i := range reports {
		if reports[i].Body, err = s.ReportBody(reports[i].Sequence); err != nil || !w.reports[text(t, reports[i])] {
			t.Errorf("damaged %v: there never was a report %+v, %v", damaged, reports[i], err)
		}
	}
	for _, d := range w.artifacts {
		switch data, err := s.Artifact(d); {
		case err == nil && digest.FromBytes(data) != d:
			t.Errorf("damaged %v: artifact %s is another one", damaged, d)
		case errors.Is(err, store.ErrNotFound) && !damaged:
			t.Errorf("artifact %s is missing, and nobody knows", d)
		case err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrCorrupt):
			t.Errorf("artifact: %v", err)
		}
	}
	entries, journalErr := s.Journal(store.JournalFilter{})
	if _, err := s.VerifyJournal(); err == nil && journalErr == nil {
		for _, e := range entries {
			expect.True(t, w.entries[text(t, e)], "damaged %v: the journal verifies with %+v", damaged, e)
		}
		expect.True(t, len(entries) == steps, "damaged %v: the journal verifies with %d entries", damaged, len(entries))
	}
	if !damaged && !(text(t, deployments) == text(t, w.last) && text(t, reports) == text(t, w.lastReports)) {
		same(t, "deployments", deployments, w.last)
		same(t, "reports", reports, w.lastReports)
	}
	return damaged
}

func (f *fixture) isDamaged() bool {
	_, damaged := f.Damage()
	return damaged
}

// survives opens what became of a database, twice, and goes on with it.
func (w *remains) survives(t testing.TB, path string) (damaged bool) {
	t.Helper()
	for i := range 2 {
		s := expect.Value(store.Open(path, store.Options{Apart: apart}))(t)
		again := w.holds(t, s)
		expect.True(t, i != 1 || again == damaged, "damaged is %v, and %v with the next start", damaged, again)
		if damaged = again; i == 1 {
			before := expect.Value(s.Reports(0, 1000))(t)
			expect.OK(t, s.Commit("test", step(steps+1)))
			after := expect.Value(s.Reports(0, 1000))(t)
			if n := len(before); len(after) <= n || n > 0 && after[len(after)-1].Sequence <= before[n-1].Sequence {
				t.Errorf("the new report is not the last: %v", after)
			}
		}
		check(t, s.Close())
	}
	checkConsistency(t, path)
	return damaged
}

// However a database is damaged, the store opens, and never tells what was not
// written for the truth.
func TestADamagedDatabaseNeverLies(t *testing.T) {
	w := sample(t)
	whole := w.files["margolite.db"]
	random := rand.New(rand.NewPCG(7, 8))
	places := 100 // each is one or two processes
	if testing.Short() {
		places = 8
	}
	t.Run("bits flip", func(t *testing.T) {
		found := 0
		for i := range places {
			data := bytes.Clone(whole)
			at := random.IntN(len(data))
			if i%2 == 0 { // most of a page's structure is at its beginning
				at = random.IntN(len(data)/pageSize)*pageSize + random.IntN(256)
			}
			data[at] ^= 1 << random.IntN(8)
			if w.survives(t, w.lay(t, data)) {
				found++
			}
			if t.Failed() {
				t.Fatalf("with byte %d of page %d flipped", at%pageSize, at/pageSize)
			}
		}
		t.Logf("%d of %d flips meant something", found, places)
	})
	t.Run("pages are lost", func(t *testing.T) {
		for range places / 2 {
			data := bytes.Clone(whole)
			at := random.IntN(len(data)/pageSize) * pageSize
			end := min(len(data), at+pageSize<<random.IntN(4))
			switch random.IntN(3) {
			case 0:
				clear(data[at:end])
			case 1:
				fill(data[at:end], 0xff)
			default:
				for i := at; i < end; i++ {
					data[i] = byte(random.Uint32())
				}
			}
			w.survives(t, w.lay(t, data))
			expect.Require(t, !t.Failed(), "without %d to %d", at, end)
		}
	})
	t.Run("it is cut off", func(t *testing.T) {
		for i := range places {
			length := random.IntN(len(whole) + 1)
			if i%4 == 0 {
				length = length / pageSize * pageSize
			}
			w.survives(t, w.lay(t, whole[:length]))
			expect.Require(t, !t.Failed(), "at %d of %d", length, len(whole))
		}
	})
	for name, data := range map[string][]byte{
		"it is gone": nil, "it is empty": {}, "it is zeros": make([]byte, len(whole)), "it is text": []byte(strings.Repeat("this is no database\n", 1000)),
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, w.survives(t, w.lay(t, data)), true, "damaged")
		})
	}
	expect.Equal(t, w.survives(t, w.lay(t, whole)), false, "damaged although nobody did it")
}

// What a page loses that is none of a record is no reason to lose the records.
func TestWhatIsSoundIsTakenOver(t *testing.T) {
	w := sample(t)
	data := bytes.Clone(w.files["margolite.db"])
	data[bytes.LastIndex(data, []byte(`"adopted":5`))] ^= 1
	path := w.lay(t, data)
	s := expect.Value(store.Open(path, store.Options{Apart: apart, Now: func() time.Time { return noon }}))(t)
	defer s.Close()
	d, damaged := s.Damage()
	expect.Require(t, damaged, "the flip was in nothing that is read")
	deployments := expect.Value(s.Deployments())(t)
	reports := expect.Value(s.Reports(0, 1000))(t)
	if lost := len(w.last) + len(w.lastReports) - len(deployments) - len(reports); lost != 1 {
		t.Errorf("%d records are lost for one that was damaged: %v", lost, d)
	}
	for _, a := range w.artifacts {
		expect.Equal(t, s.HasArtifact(a), true, "artifact %s was recovered", a)
	}
	if !d.At.Equal(noon.Truncate(time.Second)) || d.Kept != "margolite.db.bad" || !strings.Contains(d.Text, "was altered") {
		t.Errorf("it says %+v", d)
	}
	same(t, "what is kept", expect.Value(os.ReadFile(path+".bad"))(t), data)
	check(t, os.Remove(path+".bad"))
	if d, still := s.Damage(); still {
		t.Errorf("it still says %+v", d)
	}
}

func TestOnlyTheLastDamagedDatabaseIsKept(t *testing.T) {
	w := sample(t)
	path := w.lay(t, []byte("first"))
	for _, damage := range []string{"", "second", "third"} {
		if damage != "" {
			check(t, os.WriteFile(path, []byte(damage), 0o600))
		}
		expect.Equal(t, w.survives(t, path), true, "damaged")
		for _, name := range []string{"accepted.json", "settings.json"} { // what survives has gone on
			check(t, os.WriteFile(filepath.Join(filepath.Dir(path), name), w.files[name], 0o600))
		}
	}
	same(t, "what is kept", string(expect.Value(os.ReadFile(path+".bad"))(t)), "third")
	var names []string
	for _, e := range expect.Value(os.ReadDir(filepath.Dir(path)))(t) {
		names = append(names, e.Name())
	}
	same(t, "files", names, []string{"accepted.json", "journal.json", "margolite.db", "margolite.db.bad", "margolite.db.closed", "settings.json"})
}

// A power cut while the database is made anew leaves something beside it, and the
// damaged one in its place.
func TestAPowerCutWhileADatabaseIsMadeAnew(t *testing.T) {
	w := sample(t)
	damaged := bytes.Clone(w.files["margolite.db"])
	damaged[pageSize+30] ^= 1
	for name, left := range map[string]map[string][]byte{
		"a part of the new one":              {".new": damaged[:3*pageSize]},
		"the new one, and another name":      {".new": w.files["margolite.db"], ".bad": damaged},
		"an empty one, and one from earlier": {".new": nil, ".bad": []byte("earlier")},
	} {
		t.Run(name, func(t *testing.T) {
			path := w.lay(t, damaged)
			for suffix, data := range left {
				check(t, os.WriteFile(path+suffix, data, 0o600))
			}
			expect.Equal(t, w.survives(t, path), true, "damaged")
			expect.Error(t, expect.ErrorOf(os.Lstat(path+".new")), fs.ErrNotExist, "a part of the new one")
		})
	}
}

// Where there is no block left, the device starts nevertheless.
func TestADamagedDatabaseOnAFullDisk(t *testing.T) {
	onSmallDisks(t, func(t *testing.T, f *fixture, fill func() func()) {
		document := []byte(strings.Repeat("document", 400<<10))
		f.commit(store.Change{
			Manifest: &store.Manifest{Version: 7, Scope: "s"}, Settings: map[string][]byte{"locks": []byte("held")},
			Artifacts: map[digest.Digest][]byte{digest.FromBytes(document): document},
		})
		f.close()
		data := expect.Value(os.ReadFile(f.path))(t)
		file := expect.Value(os.OpenFile(f.path, os.O_WRONLY, 0))(t)
		_, err := file.WriteAt([]byte{^data[30]}, 30) // in place: it takes no block
		check(t, errors.Join(err, file.Close()))
		fill()
		f.open()
		if d, damaged := f.Damage(); !damaged || d.Kept != "" {
			t.Errorf("it says %+v, %v", d, damaged)
		}
		same(t, "version", f.manifest().Version, uint64(7))
		same(t, "setting", f.setting("locks"), "held")
	})
}

// While a store is open its file becomes shorter, as on a medium that dies: that is
// an error with each call, and the next start mends it.
func TestDamageWhileTheStoreIsOpen(t *testing.T) {
	for name, call := range map[string]func(s *store.Store, w *remains) error{
		"it is read": func(s *store.Store, w *remains) error {
			_, err := s.Deployments()
			return err
		},
		"an artifact is read": func(s *store.Store, w *remains) error {
			_, err := s.Artifact(w.artifacts[0])
			return err
		},
		"it is written": func(s *store.Store, w *remains) error { return s.Commit("test", step(steps+1)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := sample(t)
			path := w.lay(t, w.files["margolite.db"])
			s := expect.Value(store.Open(path, store.Options{Apart: apart}))(t)
			check(t, os.Truncate(path, 2*pageSize))
			expect.Error(t, call(s, w), store.ErrCorrupt, "error")
			corrupt(t, s.Guard(t.Context()), path)
			expect.Error(t, s.Commit("test", step(steps+1)), store.ErrCorrupt, "then")
			if _, _, err := s.Setting("n"); !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("then got %v", err)
			}
			expect.OK(t, s.Close())
			expect.Equal(t, w.survives(t, path), true, "damaged")
		})
	}
}

// A record that rots while the store is open is noticed when it is read, and the
// next start looks no further although the medium says something else by then.
func TestARecordThatRotsWhileTheStoreIsOpen(t *testing.T) {
	w := sample(t)
	path := w.lay(t, w.files["margolite.db"])
	s := expect.Value(store.Open(path, store.Options{Apart: apart}))(t)
	data := expect.Value(os.ReadFile(path))(t)
	flipped := bytes.ReplaceAll(data, []byte(`"adopted":5`), []byte(`"adopted":4`))
	if err := os.WriteFile(path, flipped, 0o600); err != nil { // the same file
		t.Fatal(err)
	}
	corrupt(t, expect.ErrorOf(s.Deployment("d3")), `"d3"`)
	if _, _, err := s.Manifest(); err != nil {
		t.Errorf("what is sound cannot be read: %v", err)
	}
	expect.Error(t, s.Guard(t.Context()), store.ErrCorrupt, "the guard")
	expect.OK(t, s.Close())
	check(t, os.WriteFile(path, data, 0o600))
	expect.Equal(t, w.survives(t, path), true, "damaged")
}

func TestGuardEndsWithItsContext(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Error(t, f.Guard(ctx), nil, "the guard")
}

func TestADatabaseOfANewerVersionIsRefused(t *testing.T) {
	f := newFixture(t)
	f.commit(step(1))
	f.forge(func(tx *bolt.Tx) error {
		meta := tx.Bucket([]byte("meta"))
		seal := binary.BigEndian.AppendUint32(nil, 4)
		return errors.Join(meta.Put([]byte("schema"), []byte("4")), meta.Put([]byte("seal"), append(seal, "of another form"...)))
	})
	before := snapshot(t, filepath.Dir(f.path))
	_, err := store.Open(f.path, store.Options{Apart: apart})
	if !errors.Is(err, store.ErrNewerSchema) || errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "schema 4, this version reads up to 3; install the newer version") {
		t.Errorf("got %v", err)
	}
	same(t, "files", snapshot(t, filepath.Dir(f.path)), before)
}

// A database of the schema before is read as it is. The first transaction gives it
// this one, which the version before refuses.
func TestADatabaseOfTheSchemaBeforeIsRaised(t *testing.T) {
	f := newFixture(t)
	f.commit(step(1))
	f.forge(store.Lower)
	before := expect.Value(os.ReadFile(f.path))(t)
	f.open()
	f.isAtStep(1)
	same(t, "opening it changes it", expect.Value(os.ReadFile(f.path))(t), before)
	f.commit(step(2))
	f.reopen()
	f.isAtStep(2)
	expect.Equal(t, f.isDamaged(), false, "damaged")
	f.forge(func(tx *bolt.Tx) error {
		same(t, "it has schema", string(tx.Bucket([]byte("meta")).Get([]byte("schema"))), "3")
		return nil
	})
	f.open()
}

func TestADatabaseWithoutItsLayoutIsDamaged(t *testing.T) {
	schema := func(text string) func(tx *bolt.Tx) error {
		return func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte(text)) }
	}
	for name, change := range map[string]func(tx *bolt.Tx) error{
		// A flip in the number makes it no database of a newer version, nor of an older one.
		"a newer schema than in the seal":  schema("4"),
		"an older schema than in the seal": schema("2"),
		"a schema that is a word":          schema("two"),

		"no schema":      func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Delete([]byte("schema")) },
		"no seal":        func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Delete([]byte("seal")) },
		"no meta bucket": func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("meta")) },
		"no outbox":      func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("outbox")) },
		"a record less":  func(tx *bolt.Tx) error { return tx.Bucket([]byte("settings")).Delete([]byte("n")) },
		"an artifact less": func(tx *bolt.Tx) error {
			key, _ := tx.Bucket([]byte("artifacts")).Cursor().First()
			return tx.Bucket([]byte("artifacts")).DeleteBucket(key)
		},
		"a record under another name": func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte("deployments"))
			return errors.Join(b.Put([]byte("b"), b.Get([]byte("a"))), b.Delete([]byte("a")))
		},
		"a sequence that was": func(tx *bolt.Tx) error { return tx.Bucket([]byte("outbox")).SetSequence(0) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.commit(step(1))
			f.forge(change)
			f.open()
			expect.Equal(t, f.isDamaged(), true, "damaged")
			same(t, "version", f.manifest().Version, uint64(1))
			f.commit(step(2))
		})
	}
}

// Settings are kept beside the database, and go when they are deleted.
func TestSettingsOutliveTheDatabase(t *testing.T) {
	f := newFixture(t, "time")
	f.commit(store.Change{Settings: map[string][]byte{"locks": []byte("held"), "client": []byte("c\xff"), "large": make([]byte, 65<<10), "gone": {}, "time": {1}}})
	f.commit(store.Change{Settings: map[string][]byte{"gone": nil}})
	f.loseDatabase()
	for name, want := range map[string]string{"locks": "held", "client": "c\xff"} {
		same(t, "setting "+name, f.setting(name), want)
	}
	for _, name := range []string{"large", "gone", "time"} {
		if _, set, _ := f.Setting(name); set {
			t.Errorf("setting %q is there", name)
		}
	}
	if d, damaged := f.Damage(); !damaged || d.Text != "the database was missing" || d.Kept != "" {
		t.Errorf("it says %+v, %v", d, damaged)
	}
	f.loseDatabase()
	same(t, "setting the second time", f.setting("locks"), "held")
}

// A flip in a file beside the database is noticed, and what it says comes from the
// database again.
func TestAFlipBesideTheDatabase(t *testing.T) {
	for _, name := range []string{"accepted.json", "settings.json"} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			c := step(1)
			c.Manifest.Digest = digest.FromString("manifest")
			f.commit(c)
			path := filepath.Join(filepath.Dir(f.path), name)
			whole := expect.Value(os.ReadFile(path))(t)
			for at := range whole {
				f.close()
				flipped := bytes.Clone(whole)
				flipped[at] ^= 4
				check(t, os.WriteFile(path, flipped, 0o600))
				f.open()
				same(t, "manifest", f.manifest(), *c.Manifest)
				same(t, "the file", string(expect.Value(os.ReadFile(path))(t)), string(whole))
			}
		})
	}
}
