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
	// maxJournal and maxJournalBytes bound the entries of the journal, and what
	// they have as JSON. A sixteenth goes at once, so that not every entry that
	// comes rewrites the oldest page, too.
	maxJournal      = 4096
	maxJournalBytes = 1 << 20
	// maxEntry is more than any entry has as JSON. What is larger was put there
	// by somebody else.
	maxEntry = 32 << 10
	// maxText and maxWord bound Text, and Kind, Revision and By.
	maxText = 2 << 10
	maxWord = 256
)

// keyJournal is where the bucket meta has the journalEnds.
const keyJournal = "journal"

// Entry is one thing that happened, as the journal keeps it.
type Entry struct {
	// Sequence is given by the store: one more than that of the entry before.
	Sequence uint64 `json:"sequence"`
	// Time is kept in UTC, to the nanosecond.
	Time       time.Time     `json:"time"`
	Kind       string        `json:"kind"` // opaque here
	Deployment string        `json:"deployment,omitempty"`
	Revision   digest.Digest `json:"revision,omitempty"`
	Version    uint64        `json:"version,omitempty"` // of a manifest
	By         string        `json:"by,omitempty"`      // who did it; empty: the agent by itself
	// Text is for people, one line. What is too long, here and in the other
	// texts, is cut, and what cannot be printed is replaced.
	Text string `json:"text,omitempty"`
	// Chain is given by the store, see Entry.Link.
	Chain digest.Digest `json:"chain"`
}

// Mark is a place in the journal: an entry, and with its Chain all before it.
// The zero value is the place before the first one.
type Mark struct {
	Sequence uint64        `json:"sequence"`
	Chain    digest.Digest `json:"chain,omitempty"`
}

func (e Entry) mark() Mark { return Mark{e.Sequence, e.Chain} }

// Link is the Chain of e behind an entry with the chain before: the SHA-256 of
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
// in this order, where each text follows its length in bytes, and each number
// and length is 8 bytes, big-endian.
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

// linkHash never fails, as no hash does.
type linkHash struct{ hash.Hash }

func (h linkHash) number(n uint64) { _, _ = h.Write(binary.BigEndian.AppendUint64(nil, n)) }

func (h linkHash) text(s string) {
	h.number(uint64(len(s)))
	_, _ = io.WriteString(h, s)
}

// JournalSummary is what VerifyJournal has seen.
type JournalSummary struct {
	Entries uint64 // that are sound, up to the first damage
	First   uint64 // the oldest that is kept; 0: none is
	Head    Mark   // the newest
}

// JournalFilter selects entries.
type JournalFilter struct {
	From       uint64 // sequence of the first; 0: the oldest
	Last       int    // only so many of the newest; 0: all
	Deployment string // only those about it, however its id is spelled; empty: all
}

// Journal returns entries, the oldest first. Those that cannot be read are
// named by the error, which comes with the others.
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

// VerifyJournal reads through the journal, and fails with ErrCorrupt where it is not
// as it was written: an entry was changed, moved, put in or taken away, at the ends
// as well. The error names the first entry that is not there, is not as it was
// written, or has no place there.
//
// The ends are known in three places: the chain itself, the bucket meta, and a
// file beside the database. Who changes all of them leaves nothing to be found
// here: only who has kept an earlier Head elsewhere can tell then.
func (s *Store) VerifyJournal() (sum JournalSummary, err error) {
	// The file first: it is behind the database then, never ahead.
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

// damageOf is about the entry with this sequence.
func damageOf(sequence uint64, text string, args ...any) error {
	return fmt.Errorf("entry %d of the journal %s: %w", sequence, fmt.Sprintf(text, args...), ErrCorrupt)
}

// verifyEnds checks that the journal ends with the entry last.
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

// OnAppend has told called with every entry that is appended from now on, in
// their order and once they are durable, as Options.OnCommit is.
func (s *Store) OnAppend(told func(Entry)) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.journal.told = told
}

// journalEnds are the ends of the journal. They are kept twice: in the database,
// and in a file beside it that is written after the database, and that is behind
// it therefore when the power went in between.
type journalEnds struct {
	Anchor Mark `json:"anchor"` // the newest that was dropped
	Head   Mark `json:"head"`   // the newest
}

func (e journalEnds) check() error { return nil }

// readEnds reads what the database says; what cannot be read is not known.
func readEnds(tx *bolt.Tx) (ends journalEnds, known bool) {
	data := tx.Bucket([]byte(bucketMeta)).Get([]byte(keyJournal))
	if data == nil {
		return journalEnds{}, false
	}
	ends, err := decode[journalEnds](data)
	return ends, err == nil
}

// readEndsBeside reads the file with the ends; nil where there is none.
func readEndsBeside(path string) (*journalEnds, error) {
	return readBeside[journalEnds](path, "the ends of the journal")
}

// endsSize is how large the file is, with blanks behind the record: a sector.
const endsSize = 512

// writeEndsBeside overwrites the file where it has its size already. To replace it would
// be two transactions of the file system, which write more than the entry that it
// is about. What a power cut might leave of a sector that it tore is no worse
// than no file, and mended by the next start.
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

// journal is what is known of the journal beside the database. The holder of
// Store.writing owns it.
type journal struct {
	file string       // path
	kept *journalEnds // what the file says; nil: nothing
	told func(Entry)  // or nil

	count, size int // of the entries
}

// open measures the journal, reads the file and has it catch up, unless it contradicts
// the database: then it stays as it is, and the next entry leaves a break in the chain.
func (j *journal) open(tx *bolt.Tx) error {
	j.kept, _ = readEndsBeside(j.file) // what is rotten is told by VerifyJournal, and written again
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

// keep writes the file, unless it says the same already. It may fail, on a full
// disk for example: the file is behind then, and the next entry writes it as well.
func (j *journal) keep(ends journalEnds) {
	if j.kept != nil && *j.kept == ends {
		return
	}
	if writeEndsBeside(j.file, ends) == nil {
		j.kept = &ends
	}
}

// agrees says that the file is not ahead of the database, nor of another one.
func (j *journal) agrees(b *bolt.Bucket, ends journalEnds) bool {
	switch {
	case j.kept == nil:
		return true
	case j.kept.Head == ends.Head:
		return *j.kept == ends
	}
	return isMark(b, ends, j.kept.Head)
}

// isMark says that m is a place in the journal, or before all that is kept.
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

// appended is what a transaction does to the journal, for when it is durable.
type appended struct {
	entries     []Entry
	ends        journalEnds
	count, size int
}

// append puts entries at the end and keeps the journal bounded. It does not fail
// for anything that is in the journal.
func (j *journal) append(tx *bolt.Tx, entries []Entry) (*appended, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	b, err := tx.CreateBucketIfNotExists([]byte(bucketJournal))
	if err != nil {
		return nil, err
	}
	b.FillPercent = 1 // nothing is ever put in between
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

// end is what the next entry follows. Where the places that know the ends do not
// agree it follows the newest that is known, and leaves a gap, or follows nothing
// at all: the break stays in the chain until it has grown so old that it is dropped.
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

// drop drops the oldest entries where there are too many, and anchors the rest.
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

// done takes over what is durable now, and tells it.
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

// isEntry says that a record may be one of the journal's. The others are left
// where they are, as evidence.
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

// Tidy makes of e what can be kept, as Commit does: an entry is never a reason to
// lose the change that it tells of.
func (e Entry) Tidy() Entry {
	e.Time = e.Time.UTC().Round(0)
	if year := e.Time.Year(); year < 0 || year > 9999 {
		e.Time = time.Time{}
	}
	e.Kind, e.Deployment, e.Revision = clip(e.Kind, maxWord), clip(e.Deployment, maxKey), digest.Digest(clip(string(e.Revision), maxWord))
	e.By, e.Text = clip(e.By, maxWord), clip(e.Text, maxText)
	return e
}

// clip makes one printable line of at most size bytes of s.
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
