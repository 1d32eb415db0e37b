package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// schema is the version of the layout drawn in store.go.
const schema = 1

// The top-level buckets.
const (
	bucketMeta        = "meta"
	bucketManifest    = "manifest"
	bucketDeployments = "deployments"
	bucketOutbox      = "outbox"
	bucketSettings    = "settings"
	bucketArtifacts   = "artifacts"
	bucketJournal     = "journal"
)

// buckets are those that hold something, next to the one with the schema. The
// journal is made with its first entry: databases of earlier versions have none,
// and one that somebody took away is told by VerifyJournal.
func buckets() []string {
	return []string{bucketManifest, bucketDeployments, bucketOutbox, bucketSettings, bucketArtifacts}
}

// keySchema is where every version of the program finds the schema.
const keySchema = "schema"

const (
	// lockTimeout is how long Open waits for another process to let go.
	lockTimeout = time.Second
	// pageSize stays at a sector's size also where the system's pages are
	// larger or where smaller ones would make commits cheaper: below it a torn
	// write could take both meta pages at once.
	pageSize = 4096
	// mapSize is the address space mapped at the start: while the file fits,
	// a growing file does not have to wait for readers.
	mapSize = 8 << 20
	// growth is the step in which the file grows.
	growth = 128 << 10
	// maxSize makes a store that grows without end an error before the disk is
	// full, and keeps the mapping within a 32-bit address space.
	maxSize = 512 << 20
)

// Open opens the database at path, and creates it with its directory where
// there is none. It fails with ErrLocked when another process has it open for
// longer than a second, with ErrNewerSchema or with ErrCorrupt; the file is
// left as it was then.
func Open(path string, o Options) (*Store, error) {
	s, err := open(path, o)
	if err != nil {
		return nil, fmt.Errorf("cannot open store %q: %w", path, err)
	}
	return s, nil
}

func open(path string, o Options) (*Store, error) {
	if err := makeDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := create(path); err != nil {
			return nil, err
		}
	}
	if err := inspect(path); err != nil {
		return nil, err
	}
	db, err := openBolt(path, bolt.Options{})
	if err != nil {
		return nil, err
	}
	if err := db.View(checkSchema); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s := &Store{
		db:       db,
		accepted: acceptedFile(filepath.Join(filepath.Dir(path), "accepted.json")),
		journal:  journal{file: journalFile(filepath.Join(filepath.Dir(path), "journal.json"))},
		incoming: &Incoming{filepath.Join(filepath.Dir(path), "incoming"), cmp.Or(o.IncomingBytes, defaultIncomingBytes), o.Reserve},
		room:     &room{path: path},
		onCommit: o.OnCommit,
	}
	// A power cut between a commit and the files beside it leaves the files
	// behind. Catching up is not worth a failed start, on a full disk for
	// example: the next accepted manifest or entry writes its file as well.
	if m, known, _ := s.Manifest(); known {
		s.behind = s.accepted.keep(m) != nil
	}
	if err := db.View(s.journal.open); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.room.extend(s.used())
	return s, nil
}

// create makes an empty database. It gets its name only when it is complete:
// bbolt survives a power cut at any time but during its initialisation.
func create(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return ErrLocked
		}
		return fmt.Errorf("cannot lock directory: %w", err)
	}
	if _, err := os.Stat(path); err == nil {
		return nil // another process was faster
	}

	temporary := path + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := initialise(temporary); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return dir.Sync()
}

func initialise(path string) error {
	db, err := openBolt(path, bolt.Options{})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range buckets() {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		meta, err := tx.CreateBucket([]byte(bucketMeta))
		if err != nil {
			return err
		}
		return meta.Put([]byte(keySchema), strconv.AppendInt(nil, schema, 10))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	return syncPath(path)
}

// inspect fails when the file is no database that bbolt can open without harm.
// It changes nothing.
func inspect(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	switch {
	case !info.Mode().IsRegular():
		return errors.New("it is not a regular file")
	case info.Size() == 0:
		return fmt.Errorf("%w: the file is empty", ErrCorrupt)
	}
	db, err := openBolt(path, bolt.Options{ReadOnly: true}) // for its lock
	if err != nil {
		return err
	}
	return errors.Join(inspectFile(path), db.Close())
}

func inspectFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return checkStructure(file, info.Size())
}

// checkSchema fails when this version cannot work with the layout.
func checkSchema(tx *bolt.Tx) error {
	meta := tx.Bucket([]byte(bucketMeta))
	if meta == nil {
		return fmt.Errorf("%w: there is no bucket %q", ErrCorrupt, bucketMeta)
	}
	raw := string(meta.Get([]byte(keySchema)))
	found, err := strconv.ParseUint(raw, 10, 32)
	switch {
	case err != nil || found == 0:
		return fmt.Errorf("%w: schema is %q", ErrCorrupt, raw)
	case found > schema:
		return fmt.Errorf("%w: it has schema %d, this version reads up to %d; install the newer version again, or move the file away to start empty",
			ErrNewerSchema, found, schema)
	}
	for _, name := range buckets() {
		if tx.Bucket([]byte(name)) == nil {
			return fmt.Errorf("%w: there is no bucket %q", ErrCorrupt, name)
		}
	}
	return nil
}

// openBolt opens the file with this package's settings, and turns everything
// that bbolt thinks of a damaged file into ErrCorrupt.
func openBolt(path string, o bolt.Options) (db *bolt.DB, err error) {
	var file *os.File
	defer func() {
		if err != nil && file != nil {
			// After a panic bbolt has not let go of it, and the mapping that is
			// left would keep the lock even when the file is closed.
			_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
			_ = file.Close()
		}
	}()
	defer func() {
		if damage := recover(); damage != nil {
			err = fmt.Errorf("%w: %v", ErrCorrupt, damage)
		}
	}()

	o.Timeout = lockTimeout
	o.PageSize = pageSize
	o.InitialMmapSize = mapSize
	o.MaxSize = maxSize
	o.NoFreelistSync = true
	o.FreelistType = bolt.FreelistArrayType
	o.NoStatistics = true
	o.OpenFile = func(name string, flag int, mode os.FileMode) (*os.File, error) {
		var err error
		file, err = os.OpenFile(name, flag, mode)
		return file, err
	}
	db, err = bolt.Open(path, 0o600, &o)
	var system syscall.Errno
	switch {
	case err == nil:
		db.AllocSize = growth
		return db, nil
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, ErrLocked
	case errors.As(err, &system):
		return nil, err
	default:
		return nil, fmt.Errorf("%w: %v", ErrCorrupt, err)
	}
}
