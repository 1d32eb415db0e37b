package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

const (
	blockSize = 32 << 10 // bytes read at a time
	markSize  = 64       // bytes by which a place in a file is known again
)

// Options say which part of a log is read.
type Options struct {
	Tail   int  // the last so many lines; 0: all that is kept; less: none of what is there already
	Follow bool // go on with what is appended, until ctx is done or the log is removed
}

// Read copies a log to w, oldest line first. With Follow it goes on until ctx is
// done or the log is removed, neither of which is an error. A log that does not
// exist is fs.ErrNotExist, with Follow too.
//
// A reader that is slower than the rotations misses what they dropped, and goes
// on with the oldest line that is left.
func Read(ctx context.Context, path string, o Options, w io.Writer) error {
	if err := read(ctx, path, o, w); err != nil {
		return fmt.Errorf("cannot read log: %w", err)
	}
	return nil
}

func read(ctx context.Context, path string, o Options, w io.Writer) (err error) {
	r, err := openReader(path, o.Tail)
	if err != nil {
		return err
	}
	defer r.close()
	if !o.Follow {
		return r.copyTo(ctx, w)
	}

	changes, err := watch(ctx, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r.copyTo(ctx, w)
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, changes.Close()) }()
	for {
		removed := r.removed()
		if err := r.copyTo(ctx, w); err != nil || removed || ctx.Err() != nil {
			return err
		}
		if err := changes.Wait(ctx); err != nil {
			return err
		}
	}
}

// reader has a place in a log: first in the older file, while there is something
// to be read of it, then in the current one. Rotation puts what was current into
// another older file; as long as a reader has a file open, no other can be taken
// for it.
type reader struct {
	path  string
	block []byte

	older   *os.File // nil: none was seen
	olderAt int64    // how far it was read; -1: to its end

	current *os.File
	offset  int64
	mark    []byte // the last bytes before offset, at most markSize
}

// openReader opens a log at the last so many lines.
func openReader(path string, tail int) (_ *reader, err error) {
	current, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r := &reader{path: path, current: current, olderAt: -1, block: make([]byte, blockSize)}
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

func (r *reader) close() {
	r.current.Close()
	if r.older != nil {
		r.older.Close()
	}
}

// locked does something while the log is not rotated.
func (r *reader) locked(do func() error) error {
	if err := lock(r.current, unix.LOCK_SH); err != nil {
		return err
	}
	return errors.Join(do(), lock(r.current, unix.LOCK_UN))
}

func (r *reader) seekTail(tail int) error {
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
		if r.offset, missing, err = lastLines(r.current, size, tail); err != nil {
			return err
		}
	}
	if missing > 0 && r.older != nil {
		size, err := sizeOf(r.older)
		if err != nil {
			return err
		}
		if r.olderAt, _, err = lastLines(r.older, size, missing); err != nil {
			return err
		}
	}
	r.mark = make([]byte, min(r.offset, markSize))
	_, err = r.current.ReadAt(r.mark, r.offset-int64(len(r.mark)))
	return err
}

// copyTo copies everything from the place to the end of the log.
func (r *reader) copyTo(ctx context.Context, w io.Writer) error {
	for ctx.Err() == nil {
		n, err := r.next()
		if err != nil || n == 0 {
			return err
		}
		if _, err := w.Write(r.block[:n]); err != nil {
			return err
		}
	}
	return nil
}

// next reads what follows the place into block; nothing at the end of the log.
func (r *reader) next() (n int, err error) {
	for n == 0 && err == nil {
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
func (r *reader) rotated() (bool, error) {
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
	if r.older != nil {
		err = r.older.Close()
	}
	r.older, r.offset, r.mark = older, 0, nil
	return true, err
}

// placeIn finds the place in the older file: at the same offset, elsewhere when
// the front of the file was dropped, at its start when that file is not the one
// that was read, after several rotations.
func (r *reader) placeIn(older *os.File) (int64, error) {
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
func (r *reader) removed() bool {
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

func sameFile(a, b *os.File) bool {
	infoA, errA := a.Stat()
	infoB, errB := b.Stat()
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

func sizeOf(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// readAt reads what there is, without an error at the end of the file.
func readAt(f *os.File, b []byte, offset int64) (int, error) {
	n, err := f.ReadAt(b, offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func lastBytes(b []byte) []byte { return b[max(0, len(b)-markSize):] }

// lastLines is where the last n lines before size begin, and how many of them the
// file does not have. A last line without an end is one.
func lastLines(f io.ReaderAt, size int64, n int) (from int64, missing int, err error) {
	block := make([]byte, blockSize)
	end := size
	for end > 0 {
		start := max(0, end-blockSize)
		part := block[:end-start]
		if _, err := f.ReadAt(part, start); err != nil && !errors.Is(err, io.EOF) {
			return 0, 0, err
		}
		for i := len(part) - 1; i >= 0; i-- {
			if part[i] != '\n' || start+int64(i) == size-1 {
				continue
			}
			if n--; n == 0 {
				return start + int64(i) + 1, 0, nil
			}
		}
		end = start
	}
	if size > 0 {
		n--
	}
	return 0, n, nil
}
