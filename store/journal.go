package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
)

const (
	// maxJournal and maxJournalBytes bound the entries and their JSON. A sixteenth is dropped at
	// once, so that not every new entry rewrites the oldest page too.
	maxJournal      = 4096
	maxJournalBytes = 1 << 20
	// maxEntry exceeds the JSON of any valid entry. Anything larger was not written by the store.
	maxEntry = 32 << 10
	// maxText bounds Text; maxWord bounds Kind, Revision and By.
	maxText = 2 << 10
	maxWord = 256
)

const keyJournal = "journal"

// Entry is one event in the journal.
type Entry struct {
	// Sequence is assigned by the store: one more than that of the previous entry.
	Sequence uint64 `json:"sequence"`
	// Time is kept in UTC, to the nanosecond.
	Time       time.Time     `json:"time"`
	Kind       string        `json:"kind"` // opaque here
	Deployment string        `json:"deployment,omitempty"`
	Revision   digest.Digest `json:"revision,omitempty"`
	Version    uint64        `json:"version,omitempty"` // of a manifest
	By         string        `json:"by,omitempty"`      // who did it; empty: the agent
	// Text is one line for people. Texts are cut at their bounds and made printable.
	Text string `json:"text,omitempty"`
	// Chain is assigned by the store, see Entry.Link.
	Chain digest.Digest `json:"chain"`
}

// Mark is a place in the journal: an entry and, through its Chain, all before it. The zero value is
// the place before the first one.
type Mark struct {
	Sequence uint64        `json:"sequence"`
	Chain    digest.Digest `json:"chain,omitempty"`
}

func (e Entry) mark() Mark { return Mark{e.Sequence, e.Chain} }

// Link returns the Chain of e after an entry with the chain before: the SHA-256 of
//
//	"margolite journal entry"
//	before                      as sha256:hex; empty for the first entry
//	Sequence
//	Time                        seconds since 1970
//	Time                        nanoseconds of that second
//	Kind, Deployment, Revision
//	Version
//	By, Text
//
// in this order. Each text follows its length in bytes; each number and length is
// 8 bytes, big-endian.
func (e Entry) Link(before digest.Digest) digest.Digest {
	sum := linkHash{sha256.New()}
	sum.text("margolite journal entry")
	sum.text(string(before))
	sum.number(e.Sequence)
	sum.number(uint64(e.Time.Unix()))
	sum.number(uint64(e.Time.Nanosecond()))
	sum.text(e.Kind)
	sum.text(e.Deployment)
	sum.text(string(e.Revision))
	sum.number(e.Version)
	sum.text(e.By)
	sum.text(e.Text)
	return digest.NewDigest(digest.SHA256, sum)
}

// linkHash ignores write errors: a hash returns none.
type linkHash struct{ hash.Hash }

func (h linkHash) number(n uint64) { _, _ = h.Write(binary.BigEndian.AppendUint64(nil, n)) }

func (h linkHash) text(s string) {
	h.number(uint64(len(s)))
	_, _ = io.WriteString(h, s)
}

// JournalSummary is the result of VerifyJournal.
type JournalSummary struct {
	Entries uint64 // intact ones, up to the first damage
	First   uint64 // the oldest kept; 0: none
	Head    Mark   // the newest
}

// JournalFilter selects entries.
type JournalFilter struct {
	From       uint64 // sequence of the first; 0: the oldest
	Last       int    // at most this many of the newest; 0: all
	Deployment string // compared without regard to case; empty: all
}

// Journal returns entries, oldest first. The error names unreadable ones and comes with the others.
func (s *Store) Journal(f JournalFilter) ([]Entry, error) {
	var (
		entries []Entry
		rotten  []error
	)
	err := s.view(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(bucketJournal))
		if b == nil {
			return nil
		}
		c := b.Cursor()
		for key, value := c.Last(); key != nil && (f.Last <= 0 || len(entries) < f.Last); key, value = c.Prev() {
			if len(key) == sequenceSize && binary.BigEndian.Uint64(key) < f.From {
				break
			}
			e, err := decodeEntry(key, value)
			if err != nil {
				rotten = append(rotten, err)
				continue
			}
			if f.Deployment == "" || strings.EqualFold(e.Deployment, f.Deployment) {
				entries = append(entries, e)
			}
		}
		return nil
	})
	slices.Reverse(entries)
	slices.Reverse(rotten)
	return entries, errors.Join(append(rotten, err)...)
}

// VerifyJournal reads the journal and fails with ErrCorrupt if an entry was changed, moved,
// inserted or removed, at the ends as well. The error names the first entry that is missing,
// changed or out of place.
//
// The ends are recorded in three places: the chain itself, the bucket meta, and a file beside the
// database. A change of all three can only be detected with an earlier Head kept elsewhere.
func (s *Store) VerifyJournal() (sum JournalSummary, err error) {
	// The file is read first: it may then be behind the database, never ahead.
	kept, fileErr := readEndsBeside(s.journal.file)
	err = s.view(func(tx *bolt.Tx) error {
		ends, known := readEnds(tx)
		if known {
			sum.Head = ends.Head
		}
		return verifyJournal(tx.Bucket([]byte(bucketJournal)), ends, known, kept, &sum)
	})
	return sum, errors.Join(err, fileErr)
}

func verifyJournal(b *bolt.Bucket, ends journalEnds, known bool, kept *journalEnds, sum *JournalSummary) error {
	before := ends.Anchor
	damage := func(text string, args ...any) error { return damageOf(before.Sequence+1, text, args...) }
	keptMark := func(m Mark) error {
		if kept != nil && kept.Head.Sequence == m.Sequence && kept.Head.Chain != m.Chain {
			return damageOf(m.Sequence, "does not match the file beside the database")
		}
		return nil
	}
	if err := keptMark(before); err != nil {
		return err
	}
	if b != nil {
		c := b.Cursor()
		for key, value := c.First(); key != nil; key, value = c.Next() {
			if len(key) != sequenceSize || value == nil {
				return damage("follows something that is not an entry: %.16x", key)
			}
			switch n := binary.BigEndian.Uint64(key); {
			case n <= before.Sequence: // only before the first
				return damageOf(n, "was dropped but has reappeared")
			case n != before.Sequence+1:
				return damage("is missing; the next is %d", n)
			case !known:
				return damage("exists, but the record of the journal's ends does not")
			case n > ends.Head.Sequence:
				return damage("exists, but %d was the newest", ends.Head.Sequence)
			}
			e, err := decodeEntry(key, value)
			if err != nil {
				return damage("cannot be read: %v", err)
			}
			if again, err := encode(e); err != nil || !bytes.Equal(again, value) || e.Link(before.Chain) != e.Chain {
				return damage("was altered, or does not follow the previous entry")
			}
			before = e.mark()
			if err := keptMark(before); err != nil {
				return err
			}
			if sum.Entries == 0 {
				sum.First = e.Sequence
			}
			sum.Entries++
		}
	}
	return verifyEnds(before, ends, kept)
}

func damageOf(sequence uint64, text string, args ...any) error {
	return fmt.Errorf("entry %d of the journal %s: %w", sequence, fmt.Sprintf(text, args...), ErrCorrupt)
}

func verifyEnds(last Mark, ends journalEnds, kept *journalEnds) error {
	newest := ends.Head
	if kept != nil && kept.Head.Sequence > newest.Sequence {
		newest = kept.Head
	}
	switch {
	case last.Sequence < newest.Sequence:
		return damageOf(last.Sequence+1, "is missing; the newest is %d", newest.Sequence)
	case last != ends.Head:
		return damageOf(last.Sequence, "does not match the recorded newest entry")
	case kept != nil && kept.Head == ends.Head && *kept != ends:
		return damageOf(ends.Anchor.Sequence+1, "is the oldest, but another one should be")
	}
	return nil
}

// OnAppend calls told for each new entry: in order, once durable, as Options.OnCommit.
func (s *Store) OnAppend(told func(Entry)) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.journal.told = told
}

// journalEnds are the ends of the journal. They are kept in the database and in a file beside it;
// the file is written second, so a power cut may leave it behind.
type journalEnds struct {
	Anchor Mark `json:"anchor"` // the newest that was dropped
	Head   Mark `json:"head"`   // the newest
}

func (e journalEnds) check() error { return nil }

// readEnds reads the ends from the database; unreadable ones count as unknown.
func readEnds(tx *bolt.Tx) (ends journalEnds, known bool) {
	data := tx.Bucket([]byte(bucketMeta)).Get([]byte(keyJournal))
	if data == nil {
		return journalEnds{}, false
	}
	ends, err := decode[journalEnds](data)
	return ends, err == nil
}

func readEndsBeside(path string) (*journalEnds, error) {
	return readBeside[journalEnds](path, "the ends of the journal")
}

// endsSize is the size of the file, padded with blanks to one sector.
const endsSize = 512

// writeEndsBeside overwrites the file in place if it already has its size. Replacing it would take
// two file system transactions, which write more than the entry itself. A sector torn by a power
// cut is no worse than no file; the next start repairs it.
func writeEndsBeside(path string, ends journalEnds) error {
	data, err := encode(ends)
	if err != nil {
		return err
	}
	blanks := bytes.Repeat([]byte(" "), max(endsSize-1-len(data), 0))
	data = append(append(data, blanks...), '\n')
	if overwriteFile(path, data) == nil {
		return nil
	}
	return ReplaceFile(path, 0o600, bytes.NewReader(data))
}

// journal is the state of the journal outside the database, guarded by Store.writing.
type journal struct {
	file string       // path
	kept *journalEnds // what the file says; nil: nothing
	told func(Entry)  // or nil

	count, size int // of the entries
}

// open measures the journal, reads the file and updates it. A file that contradicts the database
// stays as it is, and the next entry leaves a break in the chain.
func (j *journal) open(tx *bolt.Tx) error {
	j.kept, _ = readEndsBeside(j.file) // VerifyJournal reports an unreadable file; it is written again
	b := tx.Bucket([]byte(bucketJournal))
	if b != nil {
		c := b.Cursor()
		for key, value := c.First(); key != nil; key, value = c.Next() {
			if isEntry(key, value) {
				j.count, j.size = j.count+1, j.size+len(value)
			}
		}
	}
	ends, known := readEnds(tx)
	if known && j.agrees(b, ends) && isMark(b, ends, ends.Head) {
		j.keep(ends)
	}
	return nil
}

// keep writes the file if it differs. After a failure the next entry writes it.
func (j *journal) keep(ends journalEnds) {
	if j.kept != nil && *j.kept == ends {
		return
	}
	if writeEndsBeside(j.file, ends) == nil {
		j.kept = &ends
	}
}

// agrees reports whether the file belongs to this database and is not ahead of it.
func (j *journal) agrees(b *bolt.Bucket, ends journalEnds) bool {
	switch {
	case j.kept == nil:
		return true
	case j.kept.Head == ends.Head:
		return *j.kept == ends
	}
	return isMark(b, ends, j.kept.Head)
}

// isMark reports whether m is a place in the journal, or before all that is kept.
func isMark(b *bolt.Bucket, ends journalEnds, m Mark) bool {
	switch {
	case m.Sequence < ends.Anchor.Sequence:
		return true
	case m.Sequence == ends.Anchor.Sequence:
		return m == ends.Anchor
	case m.Sequence > ends.Head.Sequence || b == nil:
		return false
	}
	key := sequenceKey(m.Sequence)
	e, err := decodeEntry(key, b.Get(key))
	return err == nil && e.Chain == m.Chain
}

// appended is the effect of a transaction on the journal, applied once it is durable.
type appended struct {
	entries     []Entry
	ends        journalEnds
	count, size int
}

// append adds entries and keeps the journal bounded. Its present content never makes it fail.
func (j *journal) append(tx *bolt.Tx, entries []Entry) (*appended, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	b, err := tx.CreateBucketIfNotExists([]byte(bucketJournal))
	if err != nil {
		return nil, err
	}
	b.FillPercent = 1 // entries are only appended
	a := &appended{entries: slices.Clone(entries), count: j.count, size: j.size}
	ends, known := readEnds(tx)
	a.ends.Anchor, a.ends.Head = ends.Anchor, j.end(b, ends, known)
	for i := range a.entries {
		e := &a.entries[i]
		*e = e.Tidy()
		e.Sequence = a.ends.Head.Sequence + 1
		for isTaken(b, e.Sequence) {
			e.Sequence++
		}
		e.Chain = e.Link(a.ends.Head.Chain)
		value, err := encode(*e)
		if err == nil {
			err = b.Put(sequenceKey(e.Sequence), value)
		}
		if err != nil {
			return nil, fmt.Errorf("entry of the journal: %w", err)
		}
		a.ends.Head = e.mark()
		a.count, a.size = a.count+1, a.size+len(value)
	}
	if err := a.drop(b); err != nil {
		return nil, err
	}
	value, err := encode(a.ends)
	if err != nil {
		return nil, err
	}
	return a, tx.Bucket([]byte(bucketMeta)).Put([]byte(keyJournal), value)
}

// end returns the mark that the next entry follows. If the recorded ends disagree, it is the newest
// one, which leaves a gap, or none at all: the break stays in the chain until it is old enough to
// be dropped.
func (j *journal) end(b *bolt.Bucket, ends journalEnds, known bool) Mark {
	switch {
	case !known && j.kept == nil:
		return Mark{Sequence: lastSequence(b)}
	case !known || j.kept != nil && j.kept.Head.Sequence > ends.Head.Sequence:
		return j.kept.Head
	case !j.agrees(b, ends):
		return Mark{Sequence: ends.Head.Sequence}
	}
	return ends.Head
}

// drop drops the oldest entries beyond the bounds, and anchors the rest.
func (a *appended) drop(b *bolt.Bucket) error {
	if a.count <= maxJournal && a.size <= maxJournalBytes {
		return nil
	}
	var gone [][]byte
	c := b.Cursor()
	for key, value := c.First(); key != nil && (a.count > maxJournal/16*15 || a.size > maxJournalBytes/16*15); key, value = c.Next() {
		if !isEntry(key, value) {
			continue
		}
		gone = append(gone, bytes.Clone(key))
		a.count, a.size = a.count-1, a.size-len(value)
		e, err := decodeEntry(key, value)
		if err != nil { // the break stays until the next are dropped
			e = Entry{Sequence: binary.BigEndian.Uint64(key)}
		}
		a.ends.Anchor = e.mark()
	}
	for _, key := range gone {
		if err := b.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

// done applies a durable append and announces its entries.
func (j *journal) done(a *appended) {
	if a == nil {
		return
	}
	j.count, j.size = a.count, a.size
	j.keep(a.ends)
	if j.told != nil {
		for _, e := range a.entries {
			j.told(e)
		}
	}
}

// isEntry reports whether a record can be a journal entry. Others stay in place as evidence.
func isEntry(key, value []byte) bool {
	return len(key) == sequenceSize && value != nil && len(value) <= maxEntry
}

func lastSequence(b *bolt.Bucket) uint64 {
	c := b.Cursor()
	for key, value := c.Last(); key != nil; key, value = c.Prev() {
		if isEntry(key, value) {
			return binary.BigEndian.Uint64(key)
		}
	}
	return 0
}

func isTaken(b *bolt.Bucket, sequence uint64) bool {
	key := sequenceKey(sequence)
	found, _ := b.Cursor().Seek(key)
	return bytes.Equal(found, key)
}

func decodeEntry(key, value []byte) (Entry, error) {
	if !isEntry(key, value) {
		return Entry{}, fmt.Errorf("cannot read entry %.16x of the journal: %w: not an entry", key, ErrCorrupt)
	}
	n := binary.BigEndian.Uint64(key)
	e, err := decode[Entry](value)
	if err == nil && e.Sequence != n {
		err = fmt.Errorf("%w: it is entry %d", ErrCorrupt, e.Sequence)
	}
	if err != nil {
		return Entry{}, fmt.Errorf("cannot read entry %d of the journal: %w", n, err)
	}
	e.Time = e.Time.UTC() // one instant has one encoding
	return e, nil
}

func (e Entry) check() error {
	if len(e.Text) > maxText || len(e.Deployment) > maxKey || max(len(e.Kind), len(e.Revision), len(e.By)) > maxWord {
		return errors.New("a text is too long")
	}
	if year := e.Time.UTC().Year(); year < 0 || year > 9999 {
		return fmt.Errorf("invalid year %d", year)
	}
	return nil
}

// Tidy returns e in the form that Commit keeps: a bad entry must never cost the change it records.
func (e Entry) Tidy() Entry {
	e.Time = e.Time.UTC().Round(0)
	if year := e.Time.Year(); year < 0 || year > 9999 {
		e.Time = time.Time{}
	}
	e.Kind, e.Deployment, e.Revision = clip(e.Kind, maxWord), clip(e.Deployment, maxKey), digest.Digest(clip(string(e.Revision), maxWord))
	e.By, e.Text = clip(e.By, maxWord), clip(e.Text, maxText)
	return e
}

// clip returns s as one printable line of at most size bytes.
func clip(s string, size int) string {
	const cut = "…"
	s = s[:min(len(s), 2*size)]
	s = strings.ReplaceAll(strings.ToValidUTF8(s, string(unicode.ReplacementChar)), "\n", "; ")
	s = strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
	if len(s) <= size {
		return s
	}
	return strings.ToValidUTF8(s[:size-len(cut)], "") + cut
}
