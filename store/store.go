// Package store is the agent's memory: everything that has to survive a
// restart or a power cut, in one bbolt file.
//
//	margolite.db
//	├── meta
//	│   ├── schema                       decimal digits, readable by every version
//	│   ├── seal                         of all records together
//	│   └── journal                      the ends of the journal
//	├── manifest
//	│   └── accepted                     Manifest
//	├── deployments
//	│   └── <deployment id>              Deployment
//	├── outbox
//	│   └── <sequence, 8 bytes> <weight, 1 byte> <version, 8 bytes> <deployment id>
//	│                                    body of a Report; in the order of its creation
//	├── settings
//	│   └── <name>                       bytes
//	├── journal                          there with the first entry
//	│   └── <sequence, 8 bytes>          Entry
//	└── artifacts
//	    └── <algorithm:hex>              one bucket per artifact
//	        └── <chunk number, 4 bytes>  at most 256 KiB of it
//
//	margolite.db.bad                     the last one that was damaged
//	margolite.db.suspect                 there while it is known that margolite.db is damaged
//	margolite.db.closed                  there while nobody has it open, if the last one closed it
//	accepted.json                        Manifest without its ETag, beside the database
//	settings.json                        the settings, beside it, too
//	journal.json                         the ends of the journal, beside it, too
//	incoming/                            what has come so far of a large artifact, beside it, too
//	└── <algorithm-hex>                  its first bytes
//
// Numbers in keys are big-endian, records are JSON, and those of manifest,
// deployments, outbox and settings end with a sum. Small records that change
// often live in buckets of their own, away from the artifacts: bbolt rewrites a
// whole leaf page when one of its keys changes.
//
// # What holds
//
//   - One call that changes something is one transaction: after a power cut it
//     is there as a whole or not at all.
//   - What is already stored is not written again. A call that changes nothing
//     starts no transaction and writes no byte, so that flash does not wear out
//     while nothing happens.
//   - A file that is mostly empty gets smaller with the next start, where there is
//     space for the moment that takes. What each change costs a medium is in the
//     table of TestEveryChangeHasItsPrice.
//   - Artifacts are verified against their digest when they are written and
//     when they are read.
//   - What is incoming is neither verified nor synced; it can be dropped at any
//     time. It is one artifact of bounded size, and readable by the owner alone.
//   - Sequences of reports grow for the life of the database; a number is never
//     used twice.
//   - The outbox is bounded. What decides which reports stay is in their keys:
//     no body is read, or held in memory, but for its delivery.
//   - The journal is bounded, and only ever appended to. Its entries are chained
//     by hashes, and its ends are known in two more places: what is changed, put
//     in or taken away is found (VerifyJournal), and stays to be found when more
//     is appended, until it is as old as what is dropped.
//   - Within a scope the accepted manifest never goes back, in epoch and version,
//     whichever of its two copies a power cut leaves behind.
//
// # What can fail
//
// A full disk is ErrFull. The database has some room of its own on it, so that
// records and reports can still be written; artifacts leave half of it to them.
//
// A database that another process holds is ErrLocked, one that a newer version
// wrote is ErrNewerSchema; neither is touched. A single record that cannot be read
// is reported next to those that can, so that it never keeps an agent from
// starting; nor does anything in the journal keep a change from being committed.
//
// # Damage
//
// A medium that forgets, or flips bits, never makes the store tell what was not
// written. Whenever it is opened every record is compared with its sum, and the seal
// tells that none is missing. Unless it was closed in order bbolt checks its own
// structure as well, in a process of its own (Apart), because some damage would end
// the one that meets it. That costs as much as reading the records once; artifacts are
// left to their digests and the journal to its chain. What changes later is noticed
// when it is read, and faults of the mapped file are errors: Guard ends then, and the
// process is to end with it, since nothing it knows can be trusted.
//
// The next Open makes the database anew, with all that can be told to be as it was
// written: processes of their own read bucket by bucket as far as bbolt can. It keeps
// the damaged one as evidence where there is space. The accepted
// version and the settings (update locks, who the device is to its WFM) are kept in
// small files of their own besides, so that they do not disappear together with the
// database. What is lost comes again from the WFM, since the manifest has no ETag
// then; Damage says what happened.
package store

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
)

var (
	// ErrNotFound says that there is no such record or artifact.
	ErrNotFound = errors.New("not found")
	// ErrCorrupt says that stored bytes are not what was written, or that an
	// artifact does not match its digest.
	ErrCorrupt = errors.New("corrupt")
	// ErrAside says that a change is durable, and that only the file with the
	// accepted manifest could not be written.
	ErrAside = errors.New("not kept beside the database")
	// ErrLocked says that another process has the database open.
	ErrLocked = errors.New("database is in use by another process")
	// ErrNewerSchema says that a newer version of this program wrote the database.
	ErrNewerSchema = errors.New("database was written by a newer version")
)

// Options are the settings of a Store; the zero value is good.
type Options struct {
	// OnCommit is called after each transaction once it is durable, with the
	// verb of the call that made it, and before the call does anything else.
	// It may read from the Store, but must not change it. Nil: nothing is called.
	OnCommit func(verb string)
	// IncomingBytes is how large an incoming artifact may get; 0: 128 MiB.
	IncomingBytes int64
	// Reserve is how many bytes incoming artifacts leave free on the file system.
	Reserve int64
	// Passing are the names of settings that are not kept beside the database: they
	// change by themselves, which a file of their own would wear a flash for, and
	// are found out again.
	Passing []string
	// Now is for the time of damage; nil: time.Now.
	Now func() time.Time
	// Apart is for what damage could end the process with; nil: it is done in this one.
	Apart Apart
}

// Store is an open database. Its methods may be called concurrently.
type Store struct {
	db       *bolt.DB
	file     *os.File // of db
	files    files
	journal  journal
	incoming *Incoming
	room     *room
	onCommit func(verb string)

	// writing is held from the comparison with what is stored to the end of
	// the transaction. Readers do not take it.
	writing sync.Mutex
	copying sync.Mutex // held while there is a copy with a name
	// settingsBehind says that settings are still to be kept beside the database.
	settingsBehind bool
	passing        []string // those that are not
	writes         atomic.Int64
	last           atomic.Pointer[Health] // of the last transaction; nil: there was none
	dropped        atomic.Int64           // reports

	breaking sync.Mutex
	broken   chan struct{} // closed when the database turned out to be damaged
	damage   error         // how; nil: it did not
	unusable bool          // bbolt met it, and must not be asked any more
}

// Close closes the database and gives its lock back.
func (s *Store) Close() error {
	damage, unusable := s.broke()
	if unusable {
		abandon(s.file) // bbolt might wait forever for what it holds itself
		return nil
	}
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("cannot close store: %w", err)
	}
	if damage == nil {
		_ = os.WriteFile(s.files.closed(), nil, 0o600) // without it the next start looks closer
	}
	return nil
}

// Writes is the number of transactions committed since Open.
func (s *Store) Writes() int64 {
	return s.writes.Load()
}

// update runs one transaction. The caller holds s.writing.
func (s *Store) update(verb string, change func(w *writing) error) error {
	err := full(s.guard(func() error {
		return s.db.Update(func(tx *bolt.Tx) error {
			// What panics here bbolt would answer with a walk through all pages, in
			// a goroutine of its own, where nobody can stop the next panic.
			return s.guard(func() error { return inTransaction(tx, change) })
		})
	}))
	s.note(verb, err)
	if err != nil {
		return err
	}
	s.writes.Add(1)
	s.room.extend(s.used())
	if s.onCommit != nil {
		s.onCommit(verb)
	}
	return nil
}

func (s *Store) view(look func(tx *bolt.Tx) error) error {
	return s.guard(func() error { return s.db.View(look) })
}
