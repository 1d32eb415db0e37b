// Package store keeps what must survive a restart or a power cut, in one bbolt file.
//
//	margolite.db
//	├── meta
//	│   ├── schema                       decimal digits, readable by every version
//	│   ├── seal                         over all records
//	│   └── journal                      the ends of the journal
//	├── manifest
//	│   └── accepted                     Manifest
//	├── deployments
//	│   └── <deployment id>              Deployment
//	├── outbox
//	│   └── <sequence, 8 bytes> <weight, 1 byte> <version, 8 bytes> <deployment id>
//	│                                    body of a Report, in order of creation
//	├── settings
//	│   └── <name>                       bytes
//	├── journal                          created with the first entry
//	│   └── <sequence, 8 bytes>          Entry
//	└── artifacts
//	    └── <algorithm:hex>              one bucket per artifact
//	        └── <chunk number, 4 bytes>  at most 256 KiB of it
//
//	margolite.db.bad                     the last damaged database
//	margolite.db.suspect                 present while margolite.db is known to be damaged
//	margolite.db.closed                  present while margolite.db is cleanly closed
//	accepted.json                        copy of the Manifest without its ETag
//	settings.json                        copy of the settings
//	journal.json                         copy of the ends of the journal
//	incoming/                            a large artifact in transfer
//	└── <algorithm-hex>                  its bytes so far
//
// Numbers in keys are big-endian. Records are JSON; those of manifest, deployments, outbox and
// settings end with a checksum. Small records that change often have buckets of their own, away
// from the artifacts: bbolt rewrites a whole leaf page when one of its keys changes.
//
// # Guarantees
//
//   - Each call that changes something is one transaction: after a power cut it has
//     happened completely or not at all.
//   - A call that changes nothing starts no transaction and writes no byte, so that an
//     idle device does not wear out its flash. The table of TestEveryChangeHasItsPrice
//     shows what each change writes.
//   - A mostly empty file is compacted at the next start if there is temporary space.
//   - Artifacts are verified against their digest when written and when read.
//   - Incoming data is one artifact of bounded size, readable by the owner only. It is
//     neither verified nor synced and can be dropped at any time.
//   - Report sequences grow for the life of the database and are never reused.
//   - The outbox is bounded. Its keys decide which reports stay: a body is read only for
//     its delivery.
//   - The journal is bounded and append-only. Its entries are chained by hashes, and its
//     ends are recorded in two more places: VerifyJournal finds changed, inserted and
//     removed entries until they are old enough to be dropped.
//   - Within a scope the accepted manifest never goes back in epoch and version,
//     whichever of its two copies survives a power cut.
//
// # Errors
//
// A full disk is ErrFull. The database reserves some space on it, so that records and reports can
// still be written; artifacts leave half of that.
//
// A database that another process holds is ErrLocked, one that a newer version wrote is
// ErrNewerSchema; neither is touched. An unreadable record is reported along with the readable
// ones, so that it never keeps an agent from starting. Nothing in the journal prevents a commit.
//
// # Damage
//
// The store never returns data that was not written, even if the medium loses or flips bits. Open
// compares every record with its checksum; the seal shows that none is missing. After an unclean
// end bbolt also checks its own structure, in a separate process (Apart), because some damage
// crashes the process that reads it. This costs one read of the records; artifacts rely on their
// digests and the journal on its chain. Later damage is noticed on reading, and faults of the
// mapped file become errors: Guard then returns, and the process must end because its state can no
// longer be trusted.
//
// The next Open rebuilds the database from everything that can be verified: separate processes read
// bucket by bucket as far as bbolt can. The damaged file is kept as evidence if there is space. The
// accepted version and the settings (update locks, the device's identity at its WFM) have copies in
// small files, so that they survive the loss of the database. The rest comes again from the WFM,
// since the manifest has no ETag then; Damage says what happened.
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
	// ErrNotFound reports that there is no such record or artifact.
	ErrNotFound = errors.New("not found")
	// ErrCorrupt: stored bytes are not what was written, or an artifact does not match its digest.
	ErrCorrupt = errors.New("corrupt")
	// ErrAside: a change is durable, but its copy of the accepted manifest was not written.
	ErrAside = errors.New("not kept beside the database")
	// ErrLocked reports that another process has the database open.
	ErrLocked = errors.New("database is in use by another process")
	// ErrNewerSchema reports that a newer version of this program wrote the database.
	ErrNewerSchema = errors.New("database was written by a newer version")
)

// Options are the settings of a Store; the zero value is valid.
type Options struct {
	// OnCommit is called after each durable transaction, with the verb of the call that made it and
	// before that call does anything else. It may read the Store but must not change it. Optional.
	OnCommit func(verb string)
	// IncomingBytes bounds an incoming artifact; 0: 128 MiB.
	IncomingBytes int64
	// Reserve is how many bytes incoming artifacts leave free on the file system.
	Reserve int64
	// Passing names settings without a copy beside the database: they can be found out again, and
	// change so often that a copy would wear out the flash.
	Passing []string
	// Now gives the time of damage; nil: time.Now.
	Now func() time.Time
	// Apart runs work that damage may crash; nil: it runs in this process.
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

	// writing is held from the comparison with stored data to the end of the transaction.
	writing sync.Mutex
	copying sync.Mutex // held while a copy has a name
	// settingsBehind: the copy of the settings has yet to be written.
	settingsBehind bool
	passing        []string // settings without a copy
	writes         atomic.Int64
	last           atomic.Pointer[Health] // of the last transaction; nil: there was none
	dropped        atomic.Int64           // reports

	breaking sync.Mutex
	broken   chan struct{} // closed when the database turned out to be damaged
	damage   error         // how; nil: it did not
	unusable bool          // bbolt failed and must no longer be used
}

// Close closes the database and releases its lock.
func (s *Store) Close() error {
	damage, unusable := s.broke()
	if unusable {
		abandon(s.file) // bbolt might wait forever for its own locks
		return nil
	}
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("cannot close store: %w", err)
	}
	if damage == nil {
		_ = os.WriteFile(s.files.closed(), nil, 0o600) // without it the next start checks everything
	}
	return nil
}

// Writes returns the number of transactions committed since Open.
func (s *Store) Writes() int64 {
	return s.writes.Load()
}

func (s *Store) update(verb string, change func(w *writing) error) error {
	err := full(s.guard(func() error {
		return s.db.Update(func(tx *bolt.Tx) error {
			// bbolt would answer a panic here with a walk through all pages, in a goroutine of its
			// own where a second panic could not be caught.
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
