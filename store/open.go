package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	bucketMeta        = "meta"
	bucketManifest    = "manifest"
	bucketDeployments = "deployments"
	bucketOutbox      = "outbox"
	bucketSettings    = "settings"
	bucketArtifacts   = "artifacts"
	bucketJournal     = "journal"
)

// buckets lists those that must exist, next to meta. The journal is created with its first entry;
// VerifyJournal notices when it was removed.
func buckets() []string {
	return []string{bucketManifest, bucketDeployments, bucketOutbox, bucketSettings, bucketArtifacts}
}

const (
	lockTimeout = time.Second
	// pageSize stays at a sector's size whatever the system's page size or the cost of a commit:
	// below it a torn write could destroy both meta pages at once.
	pageSize = 4096
	// mapSize is mapped at the start: growing a file within it does not wait for readers.
	mapSize = 8 << 20
	// growth is the step in which the file grows.
	growth = 128 << 10
	// maxSize stops growth before the disk is full and beyond a 32-bit address space.
	maxSize = 512 << 20
)

// Open opens the database at path, and creates it with its directory if necessary. A damaged or
// lost one is rebuilt from what can be verified, see Damage. It fails with ErrLocked when another
// process holds the database for longer than a second, and with ErrNewerSchema; the file is then
// unchanged.
func Open(path string, o Options) (*Store, error) {
	s, err := open(path, o)
	if err != nil {
		return nil, fmt.Errorf("cannot open store %q: %w", path, err)
	}
	return s, nil
}

func open(path string, o Options) (*Store, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Apart == nil {
		o.Apart = here
	}
	f := files(path)
	if err := makeDir(f.dir()); err != nil {
		return nil, err
	}
	// This lock separates readers of the database from a rebuild.
	dir, err := os.Open(f.dir())
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("cannot lock directory: %w", err)
	}
	err = f.examine(o.Apart)
	if errors.Is(err, fs.ErrNotExist) || isDamage(err) {
		err = f.rebuild(o, err)
	}
	if err != nil {
		return nil, err
	}
	// From here on a power cut leaves an unclean end.
	if _, err := os.Lstat(f.closed()); err == nil {
		if err := errors.Join(remove(f.closed()), dir.Sync()); err != nil {
			return nil, err
		}
	}
	s := &Store{
		files:    f,
		journal:  journal{file: f.journal()},
		incoming: &Incoming{f.beside("incoming"), cmp.Or(o.IncomingBytes, defaultIncomingBytes), o.Reserve},
		room:     &room{path: path},
		onCommit: o.OnCommit,
		passing:  o.Passing,
		broken:   make(chan struct{}),
	}
	if s.db, s.file, err = f.openCompact(); err != nil {
		return nil, err
	}
	// A power cut between a commit and the files beside it leaves the files behind. Failing to
	// update them, on a full disk for example, must not fail the start: the next change tries
	// again.
	_ = s.keepAccepted()
	s.settingsBehind = s.keepSettings() != nil
	if err := s.view(s.journal.open); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.room.extend(s.used())
	return s, nil
}

func initialise(path string) (*bolt.DB, error) {
	db, _, err := openBolt(path, false)
	if err != nil {
		return nil, err
	}
	db.NoSync = true // it is synced before it gets its name
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range append(buckets(), bucketMeta) {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		w := &writing{Tx: tx}
		return w.finish(tx.Bucket([]byte(bucketMeta)))
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// examine fails with ErrCorrupt when bbolt cannot open the file safely or its content is not what
// was written. It changes nothing. After an unclean end a check runs apart before anything is read
// here.
func (f files) examine(apart Apart) error {
	db, file, err := openBolt(f.database(), true) // its lock keeps writers out
	if err != nil {
		return err
	}
	if err = f.suspected(file); err == nil {
		err = checkMetas(file)
	}
	if _, open := os.Lstat(f.closed()); err == nil && open != nil {
		err = Check(apart, f.database())
	}
	if err == nil {
		err = guarded(func() error {
			return db.View(func(tx *bolt.Tx) error {
				if err := touchAll(tx); err != nil {
					return err
				}
				return verifySeal(tx)
			})
		})
	}
	return errors.Join(err, db.Close())
}

// checkMetas fails with ErrCorrupt unless both meta pages are valid and within the file. A page of
// this size is written atomically, and bbolt silently falls back to the older meta page if one is
// damaged.
func checkMetas(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	order := binary.NativeEndian
	for at := range int64(2) {
		// After the 16-byte page header: magic 4, version 4, page size 4, flags 4, bucket 16, free
		// list 8, page count 8, transaction 8, checksum 8.
		var meta [64]byte
		if _, err := file.ReadAt(meta[:], at*pageSize+16); err != nil {
			return fmt.Errorf("%w: cannot read meta page %d: %w", ErrCorrupt, at, err)
		}
		sum := fnv.New64a()
		_, _ = sum.Write(meta[:56])
		if order.Uint32(meta[8:]) != pageSize || order.Uint64(meta[56:]) != sum.Sum64() {
			return fmt.Errorf("%w: meta page %d is not valid", ErrCorrupt, at)
		}
		if pages := order.Uint64(meta[40:]); pages > uint64(info.Size()/pageSize) {
			return fmt.Errorf("%w: the file has %d bytes, but should have %d pages", ErrCorrupt, info.Size(), pages)
		}
	}
	return nil
}

// Check has bbolt check any database, and fails with ErrCorrupt if it is damaged.
func Check(apart Apart, path string) error {
	out, err := apart("check", path)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(out, maxText))
	if err = errors.Join(err, out.Close()); err == nil && len(text) > 0 {
		err = fmt.Errorf("%w: %s", ErrCorrupt, text)
	}
	return err
}

// openBolt opens the file. All complaints of bbolt about a damaged one become ErrCorrupt.
func openBolt(path string, readOnly bool) (db *bolt.DB, file *os.File, err error) {
	if readOnly {
		switch info, err := os.Stat(path); {
		case err != nil:
			return nil, nil, err
		case !info.Mode().IsRegular():
			return nil, nil, errors.New("it is not a regular file") // opening a pipe could block
		case info.Size() == 0:
			return nil, nil, fmt.Errorf("%w: the file is empty", ErrCorrupt)
		}
	}
	err = guarded(func() error {
		db, err = bolt.Open(path, 0o600, &bolt.Options{
			Timeout:         lockTimeout,
			ReadOnly:        readOnly,
			PageSize:        pageSize,
			InitialMmapSize: mapSize,
			MaxSize:         maxSize,
			NoFreelistSync:  true,
			FreelistType:    bolt.FreelistArrayType,
			OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
				var err error
				file, err = os.OpenFile(name, flag, mode)
				return file, err
			},
		})
		return err
	})
	var system syscall.Errno
	switch {
	case err == nil:
		db.AllocSize = growth
		return db, file, nil
	case file != nil:
		abandon(file)
	}
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, nil, ErrLocked
	case errors.As(err, &system), isDamage(err):
		return nil, nil, err
	default:
		return nil, nil, fmt.Errorf("%w: %v", ErrCorrupt, err)
	}
}

// abandon releases a database that bbolt cannot close: after a panic bbolt's own locks stay held,
// and its remaining mapping would keep the file lock even after a close.
func abandon(file *os.File) {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
	_ = file.Close()
}
