package store_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"

	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

var noon = time.Date(2026, 3, 29, 12, 0, 0, 987654321, time.UTC)

// note is the n-th entry of a row.
func note(n int) store.Entry {
	return store.Entry{
		Time: noon.Add(time.Duration(n) * time.Second), Kind: "change.done", Deployment: "a", Revision: digest.FromString(fmt.Sprint(n)),
		Version: uint64(n), By: "user operator (1000)", Text: fmt.Sprintf("what became of <%d>", n),
	}
}

// noted appends entries from..to of that row, each in a change of its own.
func (f *fixture) noted(from, to int) {
	f.t.Helper()
	for n := from; n <= to; n++ {
		f.commit(store.Change{Journal: []store.Entry{note(n)}})
	}
}

func (f *fixture) journal(filter store.JournalFilter) []store.Entry {
	f.t.Helper()
	return expect.Value(f.Journal(filter))(f.t)
}

func (f *fixture) journalFile() string {
	return filepath.Join(filepath.Dir(f.path), "journal.json")
}

// sound fails the test unless the journal verifies with this many entries.
func (f *fixture) sound(entries, first, head uint64) {
	f.t.Helper()
	sum, err := f.VerifyJournal()
	expect.True(f.t, err == nil, "the journal does not verify: %v", err)
	same(f.t, "entries, first and head", []uint64{sum.Entries, sum.First, sum.Head.Sequence}, []uint64{entries, first, head})
}

// broken fails the test unless the journal goes wrong at an entry.
func (f *fixture) broken(at uint64) {
	f.t.Helper()
	corrupt(f.t, expect.ErrorOf(f.VerifyJournal()), fmt.Sprintf("entry %d of the journal", at))
}

// sequences of entries.
func sequences(entries []store.Entry) (s []uint64) {
	for _, e := range entries {
		s = append(s, e.Sequence)
	}
	return s
}

func key(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func entries(tx *bolt.Tx) *bolt.Bucket { return tx.Bucket([]byte("journal")) }

// ends is what the store keeps of the ends of the journal.
type ends struct {
	Anchor store.Mark `json:"anchor"`
	Head   store.Mark `json:"head"`
}

// forge writes an entry as the store would, behind the chain before.
func forge(t testing.TB, tx *bolt.Tx, e store.Entry, before digest.Digest) store.Mark {
	t.Helper()
	e.Chain = e.Link(before)
	check(t, entries(tx).Put(key(e.Sequence), expect.Value(json.Marshal(e))(t)))
	return store.Mark{Sequence: e.Sequence, Chain: e.Chain}
}

func setHead(t testing.TB, tx *bolt.Tx, head store.Mark) error {
	t.Helper()
	return tx.Bucket([]byte("meta")).Put([]byte("journal"), expect.Value(json.Marshal(ends{Head: head}))(t))
}

func stored(t testing.TB, tx *bolt.Tx, n uint64) (e store.Entry) {
	t.Helper()
	check(t, json.Unmarshal(entries(tx).Get(key(n)), &e))
	return e
}

func TestTheJournalIsKeptInOrderWithTheChange(t *testing.T) {
	f := newFixture(t)
	f.sound(0, 0, 0)
	same(t, "entries", len(f.journal(store.JournalFilter{})), 0)
	var told []uint64
	f.OnAppend(func(e store.Entry) { told = append(told, e.Sequence) })
	f.commit(store.Change{Deployments: []store.Deployment{{ID: "a"}}, Journal: []store.Entry{note(1), note(2)}})
	local := note(3)
	local.Time, local.Sequence, local.Chain = local.Time.In(time.FixedZone("CET", 3600)), 77, "no"
	f.commit(store.Change{Journal: []store.Entry{local}})
	same(t, "transactions", f.Writes(), int64(2))
	same(t, "told", told, []uint64{1, 2, 3})
	f.reopen()

	got := f.journal(store.JournalFilter{})
	before := digest.Digest("")
	for i := range got {
		want := note(i + 1)
		want.Sequence, want.Chain = uint64(i+1), got[i].Chain
		same(t, "entry", got[i], want)
		same(t, "chain", got[i].Chain, got[i].Link(before))
		before = got[i].Chain
	}
	f.sound(3, 1, 3)
	sum, _ := f.VerifyJournal()
	same(t, "head", sum.Head.Chain, before)
}

// The encoding is a promise: who kept a chain can compute it again.
func TestTheChainIsWhatItIsDocumentedToBe(t *testing.T) {
	e := store.Entry{Sequence: 7, Time: time.Unix(1, 2), Kind: "k", Deployment: "d", Revision: "r", Version: 9, By: "b", Text: "ä"}
	var b bytes.Buffer
	number := func(n uint64) { b.Write(key(n)) }
	text := func(s string) { number(uint64(len(s))); b.WriteString(s) }
	text("margolite journal entry")
	text("sha256:before")
	number(7)
	number(1)
	number(2)
	text("k")
	text("d")
	text("r")
	number(9)
	text("b")
	text("ä")
	same(t, "chain", e.Link("sha256:before"), digest.FromBytes(b.Bytes()))
}

func TestEntriesAreSelected(t *testing.T) {
	f := newFixture(t)
	for n := range 6 {
		e := note(n)
		e.Deployment = []string{"a", "B", ""}[n%3]
		f.commit(store.Change{Journal: []store.Entry{e}})
	}
	for _, test := range []struct {
		filter store.JournalFilter
		want   []uint64
	}{
		{store.JournalFilter{}, []uint64{1, 2, 3, 4, 5, 6}},
		{store.JournalFilter{From: 5}, []uint64{5, 6}},
		{store.JournalFilter{From: 7}, nil},
		{store.JournalFilter{Last: 2}, []uint64{5, 6}},
		{store.JournalFilter{From: 2, Last: 100}, []uint64{2, 3, 4, 5, 6}},
		{store.JournalFilter{Deployment: "b"}, []uint64{2, 5}},
		{store.JournalFilter{Deployment: "A", Last: 1}, []uint64{4}},
		{store.JournalFilter{Deployment: "A", From: 5}, nil},
		{store.JournalFilter{Deployment: "c"}, nil},
	} {
		same(t, fmt.Sprintf("%+v", test.filter), sequences(f.journal(test.filter)), test.want)
	}
}

// Nothing in an entry keeps a change from being committed, or its line from
// being printed.
func TestWhatCannotBeKeptIsCut(t *testing.T) {
	f := newFixture(t)
	long := strings.Repeat("<ä\xff", 5000)
	f.commit(store.Change{Journal: []store.Entry{
		{Time: time.Unix(1<<60, 0), Kind: long, Deployment: long, Revision: digest.Digest(long), By: long, Text: long},
		{Text: "one\ntwo\x1b[2J\u202ethree"},
		{Text: strings.Repeat("x", 2048)},
		{Text: strings.Repeat("x", 2049)},
	}})
	got := f.journal(store.JournalFilter{})
	e := got[0]
	for _, text := range []struct {
		is  string
		max int
	}{{e.Kind, 256}, {e.Deployment, 512}, {string(e.Revision), 256}, {e.By, 256}, {e.Text, 2048}} {
		if len(text.is) > text.max || len(text.is) < text.max-8 || !utf8.ValidString(text.is) || !strings.HasSuffix(text.is, "…") {
			t.Errorf("%q has %d bytes", text.is, len(text.is))
		}
	}
	same(t, "time", e.Time, time.Time{})
	same(t, "text", got[1].Text, "one; two\uFFFD[2J\uFFFDthree")
	same(t, "text that fits", got[2].Text, strings.Repeat("x", 2048))
	same(t, "text that does not", got[3].Text, strings.Repeat("x", 2045)+"…")
	f.reopen()
	f.sound(4, 1, 4)
}

func TestTheOldestEntriesGo(t *testing.T) {
	f := newFixture(t)
	many := func(n, size int) {
		batch := make([]store.Entry, n)
		for i := range batch {
			batch[i] = store.Entry{Time: noon, Kind: "k", Text: strings.Repeat("x", size)}
		}
		f.commit(store.Change{Journal: batch})
	}
	for range 4096 / 64 {
		many(64, 10)
	}
	f.sound(4096, 1, 4096)
	f.noted(1, 1)
	f.sound(4096/16*15, 258, 4097)
	f.reopen()
	many(257, 10)
	many(42, 10)
	f.sound(4096/16*15+42, 515, 4396)

	for range 100 {
		many(8, 2000)
	}
	sum := expect.Value(f.VerifyJournal())(t)
	expect.True(t, sum.Entries >= 440 && sum.Entries <= 500 && sum.Head.Sequence == 4396+800, "of 2 KiB each there are %+v", sum)
	f.edit(func(tx *bolt.Tx) error {
		size := 0
		err := entries(tx).ForEach(func(_, value []byte) error { size += len(value); return nil })
		expect.True(t, size <= 1<<20, "%d bytes are kept", size)
		return err
	})
	f.open()
}

// Each row does something to the journal of ten entries that this program never
// does.
func TestWhateverIsDoneToTheJournalIsFound(t *testing.T) {
	edit := func(change func(t *testing.T, tx *bolt.Tx) error) func(f *fixture) {
		return func(f *fixture) {
			f.edit(func(tx *bolt.Tx) error { return change(f.t.(*testing.T), tx) })
		}
	}
	remove := func(sequences ...uint64) func(f *fixture) {
		return edit(func(_ *testing.T, tx *bolt.Tx) (err error) {
			for _, n := range sequences {
				err = errors.Join(err, entries(tx).Delete(key(n)))
			}
			return err
		})
	}
	write := func(n uint64, value string) func(f *fixture) {
		return edit(func(_ *testing.T, tx *bolt.Tx) error { return entries(tx).Put(key(n), []byte(value)) })
	}
	duplicate := func(n, as uint64) func(f *fixture) {
		return edit(func(_ *testing.T, tx *bolt.Tx) error {
			return entries(tx).Put(key(as), bytes.Clone(entries(tx).Get(key(n))))
		})
	}
	var ten []store.Entry
	for n := range 10 {
		ten = append(ten, note(n+1))
	}
	for name, test := range map[string]struct {
		tamper func(f *fixture)
		at     uint64 // where it goes wrong
		after  uint64 // the same once more was appended; 0: as before
	}{
		"a text is changed": {edit(func(t *testing.T, tx *bolt.Tx) error {
			e := stored(t, tx, 4)
			e.Text += "!"
			return entries(tx).Put(key(4), expect.Value(json.Marshal(e))(t))
		}), 4, 0},
		"the last is changed, and its chain with it": {edit(func(t *testing.T, tx *bolt.Tx) error {
			e := stored(t, tx, 10)
			e.Text = "forged"
			forge(t, tx, e, stored(t, tx, 9).Chain)
			return nil
		}), 10, 11},
		"the last is changed, and its chain and the head with it": {edit(func(t *testing.T, tx *bolt.Tx) error {
			e := stored(t, tx, 10)
			e.Text = "forged"
			return setHead(t, tx, forge(t, tx, e, stored(t, tx, 9).Chain))
		}), 10, 11},
		"all from one on are changed, and the head with them": {edit(func(t *testing.T, tx *bolt.Tx) error {
			before := store.Mark{Sequence: 3, Chain: stored(t, tx, 3).Chain}
			for n := uint64(4); n <= 10; n++ {
				e := stored(t, tx, n)
				e.Text = "forged"
				before = forge(t, tx, e, before.Chain)
			}
			return setHead(t, tx, before)
		}), 10, 11},
		"one is written in other JSON": {edit(func(_ *testing.T, tx *bolt.Tx) error {
			return entries(tx).Put(key(4), append(bytes.Clone(entries(tx).Get(key(4))), ' '))
		}), 4, 0},
		"one is enormous":         {write(4, strings.Repeat("\x00", 2<<20)), 4, 0},
		"one is removed":          {remove(5), 5, 0},
		"the last is removed":     {remove(10), 10, 0},
		"all are removed":         {remove(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 1, 0},
		"the bucket is deleted":   {edit(func(_ *testing.T, tx *bolt.Tx) error { return tx.DeleteBucket([]byte("journal")) }), 1, 0},
		"the database is deleted": {(*fixture).loseDatabaseClosed, 1, 0},
		"the last are removed, and the head with them": {edit(func(t *testing.T, tx *bolt.Tx) error {
			e := stored(t, tx, 7)
			return errors.Join(setHead(t, tx, store.Mark{Sequence: 7, Chain: e.Chain}),
				entries(tx).Delete(key(8)), entries(tx).Delete(key(9)), entries(tx).Delete(key(10)))
		}), 8, 0},
		"the bucket is deleted, and the head with it": {edit(func(_ *testing.T, tx *bolt.Tx) error {
			return errors.Join(tx.DeleteBucket([]byte("journal")), tx.Bucket([]byte("meta")).Delete([]byte("journal")))
		}), 1, 0},
		"the first are removed, and anchored": {edit(func(t *testing.T, tx *bolt.Tx) error {
			e, last := stored(t, tx, 2), stored(t, tx, 10)
			return errors.Join(entries(tx).Delete(key(1)), entries(tx).Delete(key(2)), tx.Bucket([]byte("meta")).Put([]byte("journal"),
				expect.Value(json.Marshal(ends{store.Mark{Sequence: 2, Chain: e.Chain}, store.Mark{Sequence: 10, Chain: last.Chain}}))(t)))
		}), 3, 11},
		"two change places": {edit(func(_ *testing.T, tx *bolt.Tx) error {
			a, b := bytes.Clone(entries(tx).Get(key(4))), bytes.Clone(entries(tx).Get(key(6)))
			return errors.Join(entries(tx).Put(key(4), b), entries(tx).Put(key(6), a))
		}), 4, 0},
		"the last is duplicated":      {duplicate(10, 11), 11, 0},
		"one is put before the first": {duplicate(1, 0), 0, 0},
		"one is put behind the last": {edit(func(t *testing.T, tx *bolt.Tx) error {
			e := stored(t, tx, 10)
			e.Sequence = 11
			forge(t, tx, e, stored(t, tx, 10).Chain)
			return nil
		}), 11, 12},
		"one is put at the very end": {write(1<<64-1, "{}"), 11, 13},
		"something is put in that is no entry": {edit(func(_ *testing.T, tx *bolt.Tx) error {
			return entries(tx).Put([]byte{0, 0, 0, 0, 0, 0, 0, 3, 1}, []byte("x"))
		}), 4, 0},
		"a bucket is put in": {edit(func(_ *testing.T, tx *bolt.Tx) error {
			_, err := entries(tx).CreateBucket(key(11))
			return err
		}), 11, 0},
		"the head is deleted": {edit(func(_ *testing.T, tx *bolt.Tx) error {
			return tx.Bucket([]byte("meta")).Delete([]byte("journal"))
		}), 1, unbroken}, // the file proves that nothing is missing
		"the head and the file are deleted": {func(f *fixture) {
			edit(func(_ *testing.T, tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Delete([]byte("journal")) })(f)
			check(f.t, os.Remove(f.journalFile()))
		}, 1, 11},
		"the head is ahead": {edit(func(t *testing.T, tx *bolt.Tx) error {
			return setHead(t, tx, store.Mark{Sequence: 12, Chain: digest.FromString("")})
		}), 11, 0},
		"the file is ahead": {func(f *fixture) {
			f.close()
			f.writeJournalFile(`{"anchor":{"sequence":0},"head":{"sequence":12,"chain":"sha256:0"}}`)
		}, 11, 0},
		"the file is of another journal": {func(f *fixture) {
			f.close()
			f.writeJournalFile(`{"anchor":{"sequence":0},"head":{"sequence":9,"chain":"sha256:0"}}`)
		}, 9, 11},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.commit(store.Change{Journal: ten})
			f.sound(10, 1, 10)
			test.tamper(f)
			f.open()
			f.broken(test.at)
			f.reopen()
			f.broken(test.at) // opening it mends nothing

			// The agent works on, and what it appends does not cover it up.
			f.noted(11, 12)
			last := f.lastOf()
			same(t, "the newest", last.Text, note(12).Text)
			switch test.after {
			case unbroken:
				f.sound(12, 1, 12)
			case 0:
				f.broken(test.at)
			default:
				f.broken(test.after)
			}
			f.reopen()
			if _, err := f.VerifyJournal(); (err == nil) != (test.after == unbroken) {
				t.Errorf("after reopening: %v", err)
			}
		})
	}
}

// unbroken is no entry where it can go wrong.
const unbroken = 1 << 40

// lastOf is the newest entry that can be read.
func (f *fixture) lastOf() store.Entry {
	f.t.Helper()
	last, err := f.Journal(store.JournalFilter{Last: 1})
	expect.Require(f.t, (err == nil || errors.Is(err, store.ErrCorrupt)) && len(last) == 1, "got %v, %v", last, err)
	return last[0]
}

func (f *fixture) loseDatabaseClosed() {
	f.t.Helper()
	f.close()
	check(f.t, os.Remove(f.path))
}

func (f *fixture) writeJournalFile(content string) {
	f.t.Helper()
	check(f.t, os.WriteFile(f.journalFile(), []byte(content), 0o600))
}

// Whichever byte of whichever entry is another one, it is found.
func TestEveryChangedByteIsFound(t *testing.T) {
	f := newFixture(t)
	f.noted(1, 3)
	f.close()
	db := expect.Value(bolt.Open(f.path, 0o600, &bolt.Options{NoFreelistSync: true, NoSync: true}))(t)
	var value []byte
	_ = db.View(func(tx *bolt.Tx) error { value = bytes.Clone(entries(tx).Get(key(2))); return nil })
	whole := bytes.Clone(value)
	check(t, db.Close())
	data := expect.Value(os.ReadFile(f.path))(t)
	at := bytes.LastIndex(data, whole) // of some page; changed in all of them
	expect.Require(t, at >= 0, "the entry is not in the file")
	for i := range whole {
		changed := bytes.Clone(whole)
		changed[i] ^= 1 << (i % 8)
		check(t, os.WriteFile(f.path, bytes.ReplaceAll(data, whole, changed), 0o600))
		f.open()
		f.broken(2)
		f.close()
	}
	check(t, os.WriteFile(f.path, data, 0o600))
	f.open()
	f.sound(3, 1, 3)
}

// A break is as old as its entry, and goes with it.
func TestABreakIsDroppedWithItsEntries(t *testing.T) {
	f := newFixture(t)
	f.noted(1, 3)
	f.edit(func(tx *bolt.Tx) error {
		return errors.Join(entries(tx).Put(key(2), []byte("{")), entries(tx).Delete(key(3)))
	})
	f.open()
	batch := make([]store.Entry, 4096)
	f.commit(store.Change{Journal: batch})
	f.sound(4096/16*15, 4096+4-4096/16*15, 4096+3)
}

func TestEntriesThatCannotBeReadComeBesideTheOthers(t *testing.T) {
	f := newFixture(t)
	f.noted(1, 4)
	f.edit(func(tx *bolt.Tx) error {
		return errors.Join(entries(tx).Put(key(2), []byte("{")), entries(tx).Put([]byte("odd"), nil))
	})
	f.open()
	got, err := f.Journal(store.JournalFilter{})
	same(t, "the others", sequences(got), []uint64{1, 3, 4})
	corrupt(t, err, "entry 2 of", "entry 6f6464 of")
}

func TestAJournalFileThatCannotBeWrittenDoesNotUndoTheCommit(t *testing.T) {
	f := newFixture(t)
	inTheWay := f.journalFile() + ".new"
	check(t, os.Mkdir(inTheWay, 0o700))
	check(t, os.WriteFile(filepath.Join(inTheWay, "file"), nil, 0o600))
	f.noted(1, 3)
	f.sound(3, 1, 3)
	f.reopen()
	f.sound(3, 1, 3)
	check(t, os.RemoveAll(inTheWay))
	f.noted(4, 4)
	f.sound(4, 1, 4)
	expect.Contains(t, string(expect.Value(os.ReadFile(f.journalFile()))(t)), `"sequence":4`, "the file")
}

func TestARottenJournalFileIsReportedAndMended(t *testing.T) {
	f := newFixture(t)
	f.noted(1, 2)
	f.writeJournalFile(`{"anchor"`)
	corrupt(t, expect.ErrorOf(f.VerifyJournal()), f.journalFile())
	f.reopen()
	f.sound(2, 1, 2)
}
