package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

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
// journal is made with its first entry; VerifyJournal notices when it was taken
// away.
func buckets() []string {
	return []string{bucketManifest, bucketDeployments, bucketOutbox, bucketSettings, bucketArtifacts}
}

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
// there is none. One that is damaged, or that is gone, is made anew with what can
// be told to be as it was written, see Damage. It fails with ErrLocked when another
// process has it open for longer than a second, and with ErrNewerSchema; the file
// is left as it was then.
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
	f := files(path)
	if err := makeDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	used, err := f.inspect()
	switch {
	case errors.Is(err, fs.ErrNotExist), isDamage(err):
		err = f.rebuild(o.Now)
	case err == nil:
		f.compact(used)
	}
	if err != nil {
		return nil, err
	}
	s := &Store{
		files:    f,
		accepted: f.accepted(),
		journal:  journal{file: f.journal()},
		incoming: &Incoming{filepath.Join(filepath.Dir(path), "incoming"), cmp.Or(o.IncomingBytes, defaultIncomingBytes), o.Reserve},
		room:     &room{path: path},
		onCommit: o.OnCommit,
		passing:  o.Passing,
		broken:   make(chan struct{}),
	}
	if s.db, s.file, err = openBolt(path); err != nil {
		return nil, err
	}
	// A power cut between a commit and the files beside it leaves the files
	// behind. Catching up is not worth a failed start, on a full disk for
	// example: the next accepted manifest or entry writes its file as well.
	if m, known, _ := s.Manifest(); known {
		s.behind = s.accepted.keep(m) != nil
	}
	s.settingsBehind = s.keepSettings() != nil
	if err := s.view(s.journal.open); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.room.extend(s.used())
	return s, nil
}

// initialise makes an empty database.
func initialise(path string) (*bolt.DB, error) {
	db, _, err := openBolt(path)
	if err != nil {
		return nil, err
	}
	db.NoSync = true // its name is given to it when it is on the medium
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range append(buckets(), bucketMeta) {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		meta := tx.Bucket([]byte(bucketMeta))
		w := &writing{Tx: tx}
		return errors.Join(meta.Put([]byte(keySchema), []byte(strconv.Itoa(schema))), w.finish(meta))
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// inspect fails when the file is no database that bbolt can open without harm,
// and that has what was written to it, and returns how many bytes of it are in
// use. It changes nothing.
func (f files) inspect() (used int64, err error) {
	file, err := f.lock()
	if err != nil {
		return 0, err
	}
	used, err = f.examine(file)
	return used, errors.Join(err, file.Close())
}

// lock opens the database file and keeps everybody from it who would change it,
// until it is closed.
func (f files) lock() (*os.File, error) {
	if info, err := os.Stat(f.database()); err == nil && !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file") // and might be waited for
	}
	file, err := os.Open(f.database())
	if err != nil {
		return nil, err
	}
	for began := time.Now(); ; time.Sleep(lockTimeout / 20) {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) && time.Since(began) < lockTimeout {
			continue
		}
		break
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func (f files) examine(file *os.File) (used int64, err error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	if info.Size() == 0 {
		return 0, fmt.Errorf("%w: the file is empty", ErrCorrupt)
	}
	if err := f.suspected(file); err != nil {
		return 0, err
	}
	var c census
	if used, err = checkStructure(file, info.Size(), c.visitor()); err != nil {
		return 0, err
	}
	return used, c.compare()
}

// openBolt opens the file with this package's settings, and turns everything
// that bbolt thinks of a damaged file into ErrCorrupt.
func openBolt(path string) (db *bolt.DB, file *os.File, err error) {
	defer func() {
		if err != nil && file != nil {
			abandon(file)
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if damage := recover(); damage != nil {
			err = fmt.Errorf("%w: %v", ErrCorrupt, damage)
		}
	}()

	db, err = bolt.Open(path, 0o600, &bolt.Options{
		Timeout:         lockTimeout,
		PageSize:        pageSize,
		InitialMmapSize: mapSize,
		MaxSize:         maxSize,
		NoFreelistSync:  true,
		FreelistType:    bolt.FreelistArrayType,
		NoStatistics:    true,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			var err error
			file, err = os.OpenFile(name, flag, mode)
			return file, err
		},
	})
	var system syscall.Errno
	switch {
	case err == nil && !isAt(file, path):
		return nil, nil, errors.Join(ErrLocked, db.Close()) // who had it made another one of it
	case err == nil:
		db.AllocSize = growth
		return db, file, nil
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, nil, ErrLocked
	case errors.As(err, &system):
		return nil, nil, err
	default:
		return nil, nil, fmt.Errorf("%w: %v", ErrCorrupt, err)
	}
}

// abandon lets go of a database that bbolt cannot close: after a panic it has
// locks of its own, and the mapping that is left would keep the file's even when
// it is closed.
func abandon(file *os.File) {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
	_ = file.Close()
}

// isAt says that a file has this path, still.
func isAt(file *os.File, path string) bool {
	opened, err := file.Stat()
	named, nameErr := os.Stat(path)
	return err == nil && nameErr == nil && os.SameFile(opened, named)
}
