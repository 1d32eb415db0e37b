package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// MendBolt checks a database of bbolt that is not one of this package, before it is
// opened, and mends what can be mended in it, on the medium when it returns: where
// the newest transaction is damaged and the one before it is whole, that one becomes
// the newest; where only the list of free pages is, bbolt has to make another one.
// mended says what was done, empty: nothing had to be. It fails with ErrCorrupt where
// neither transaction is whole, with ErrLocked where another process has it open, and
// leaves the file as it was then. A power cut leaves it as it was or mended.
func MendBolt(path string) (mended string, err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return "", ErrLocked
	case err != nil:
		return "", fmt.Errorf("cannot lock database: %w", err)
	}
	metas, r, err := foreignMetas(file)
	if err != nil {
		return "", err
	}
	var found error
	for i, m := range metas {
		s, err := checkTree(r, r.Size(), m, visitor{})
		if err != nil {
			found = errors.Join(found, err)
			continue
		}
		if listErr := s.freelist(); listErr != nil {
			// All that is in the tree is there, and all else is free.
			if err := writeMeta(file, m, noFreelist); err != nil {
				return "", err
			}
			mended = fmt.Sprintf("the list of free pages was rebuilt: %v", listErr)
		}
		if i > 0 {
			if err := invalidate(file, metas[0]); err != nil {
				return "", err
			}
			mended = fmt.Sprintf("the last transaction is lost: %v", found)
		}
		return mended, nil
	}
	return "", found
}

// inMemory is the size up to which a file is read at once. That of containerd has
// half a megabyte with three applications.
const inMemory = 4 << 20

// sized is a file as its checks read it.
type sized interface {
	io.ReaderAt
	Size() int64
}

// foreignMetas are the valid meta pages of a file with pages of any size that bbolt
// may have taken, which is that of the system.
func foreignMetas(file *os.File) ([]meta, sized, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, errors.New("it is not a regular file")
	}
	var r sized = io.NewSectionReader(file, 0, info.Size())
	if info.Size() <= inMemory {
		data := make([]byte, info.Size())
		if _, err := file.ReadAt(data, 0); err == nil { // else what cannot be read may be in no use
			r = bytes.NewReader(data)
		}
	}
	for size := int64(1 << 10); size <= 1<<16; size <<= 1 {
		if metas := metasOf(r, size); len(metas) > 0 {
			return metas, r, nil
		}
	}
	return nil, nil, errNoMeta
}

// writeMeta writes a meta page again, with another place of the free list. It is
// within a sector.
func writeMeta(file *os.File, m meta, freelist uint64) error {
	data, err := bytesAt(file, m.at+headerSize, metaSize)
	if err != nil {
		return err
	}
	order := binary.NativeEndian
	order.PutUint64(data[32:], freelist)
	sum := fnv.New64a()
	_, _ = sum.Write(data[:metaSize-8])
	order.PutUint64(data[metaSize-8:], sum.Sum64())
	return writeSynced(file, data, m.at+headerSize)
}

// invalidate makes a meta page one that bbolt passes over.
func invalidate(file *os.File, m meta) error {
	return writeSynced(file, make([]byte, metaSize), m.at+headerSize)
}

func writeSynced(file *os.File, data []byte, at int64) error {
	_, err := file.WriteAt(data, at)
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		return fmt.Errorf("cannot repair database: %w", full(err))
	}
	return nil
}
