package log

import (
	"bytes"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

const markSize = 64 // bytes by which a place in a file is known again

// plain has a place in a log of plain text: first in the older file, while there is something
// to be read of it, then in the current one. Rotation puts what was current into
// another older file; as long as a reader has a file open, no other can be taken
// for it.
type plain struct {
	path  string
	block []byte

	older   *os.File // nil: none was seen
	olderAt int64    // how far it was read; -1: to its end

	current *os.File
	offset  int64
	mark    []byte // the last bytes before offset, at most markSize

	whole bool // what was read ends with a line
	torn  bool // the rest of a line that was read in part is lost
}

// openPlain opens a log at the last so many lines.
func openPlain(path string, tail int) (_ *plain, err error) {
	current, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r := &plain{path: path, current: current, olderAt: -1, block: make([]byte, blockSize), whole: true}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	err = r.locked(func() error {
		if r.older, err = openOlder(path); err != nil {
			return err
		}
		return r.seekTail(tail)
	})
	return r, err
}

func (r *plain) close() {
	r.current.Close()
	if r.older != nil {
		r.older.Close()
	}
}

// locked does something while the log is not rotated.
func (r *plain) locked(do func() error) error {
	if err := lock(r.current, unix.LOCK_SH); err != nil {
		return err
	}
	return errors.Join(do(), lock(r.current, unix.LOCK_UN))
}

func (r *plain) seekTail(tail int) error {
	size, err := sizeOf(r.current)
	if err != nil {
		return err
	}
	missing := 0
	switch {
	case tail == 0:
		r.olderAt = 0
	case tail < 0:
		r.offset = size
	default:
		if r.offset, missing, err = lastLines(r.current, size, tail, false, true); err != nil {
			return err
		}
	}
	if missing > 0 && r.older != nil {
		size, err := sizeOf(r.older)
		if err != nil {
			return err
		}
		if r.olderAt, _, err = lastLines(r.older, size, missing, false, true); err != nil {
			return err
		}
	}
	r.mark = make([]byte, min(r.offset, markSize))
	_, err = r.current.ReadAt(r.mark, r.offset-int64(len(r.mark)))
	return err
}

// next reads what follows the place; nothing at the end of the log.
func (r *plain) next() ([]byte, error) {
	n, err := r.fill()
	if n > 0 {
		r.whole = r.block[n-1] == '\n'
	}
	return r.block[:n], err
}

func (r *plain) fill() (n int, err error) {
	for n == 0 && err == nil {
		if r.torn { // what comes next is no part of it
			r.torn = false
			return copy(r.block, "\n"), nil
		}
		if r.older != nil && r.olderAt >= 0 {
			if n, err = readAt(r.older, r.block, r.olderAt); n > 0 || err != nil {
				r.olderAt += int64(n)
				return n, err
			}
			r.olderAt = -1
		}
		rotated := false
		err = r.locked(func() error {
			if rotated, err = r.rotated(); rotated || err != nil {
				return err
			}
			n, err = readAt(r.current, r.block, r.offset)
			if n == len(r.block) {
				// The rest of a line that is split here could be gone by the next call.
				n = bytes.LastIndexByte(r.block, '\n') + 1
				if n == 0 {
					n = len(r.block)
				}
			}
			return err
		})
		if !rotated {
			break
		}
	}
	r.offset += int64(n)
	r.mark = lastBytes(append(r.mark, lastBytes(r.block[:n])...))
	return n, err
}

// rotated looks for another older file than the one that was seen. There the
// place is behind what was read of it as the current one.
func (r *plain) rotated() (bool, error) {
	older, err := openOlder(r.path)
	if older == nil || err != nil {
		return false, err
	}
	if r.older != nil && sameFile(older, r.older) {
		return false, older.Close()
	}
	if r.olderAt, err = r.placeIn(older); err != nil {
		return false, errors.Join(err, older.Close())
	}
	r.torn = !r.whole && r.offset > 0 && r.olderAt == 0
	if r.older != nil {
		err = r.older.Close()
	}
	r.older, r.offset, r.mark = older, 0, nil
	return true, err
}

// placeIn finds the place in the older file: at the same offset, elsewhere when
// the front of the file was dropped, at its start when that file is not the one
// that was read, after several rotations.
func (r *plain) placeIn(older *os.File) (int64, error) {
	if r.offset == 0 {
		return 0, nil
	}
	n, err := readAt(older, r.block[:len(r.mark)], r.offset-int64(len(r.mark)))
	if err != nil || bytes.Equal(r.block[:n], r.mark) {
		return r.offset, err
	}
	place := int64(0)
	for at := int64(0); ; at += blockSize - markSize {
		n, err := readAt(older, r.block, at)
		if i := bytes.LastIndex(r.block[:n], r.mark); i >= 0 {
			place = at + int64(i+len(r.mark))
		}
		if err != nil || n < len(r.block) {
			return place, err
		}
	}
}

// removed tells whether the log was deleted, or replaced by another.
func (r *plain) removed() bool {
	named, err := os.Open(r.path)
	if err != nil {
		return true
	}
	defer named.Close()
	return !sameFile(named, r.current)
}

// openOlder opens the older file; nil if there is none.
func openOlder(path string) (*os.File, error) {
	f, err := os.Open(older(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

func lastBytes(b []byte) []byte { return b[max(0, len(b)-markSize):] }
