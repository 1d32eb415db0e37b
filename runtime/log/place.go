package log

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

const blockSize = 8 << 10 // bytes read at a time

// file is a log with a place up to which it was read.
type file interface {
	// next returns what follows the place, valid until the next call; nothing at
	// the end of the log.
	next() ([]byte, error)
	// removed tells whether the log was deleted, or replaced by another: there is
	// nothing behind what next still returns.
	removed() bool
	close()
}

// openFile opens the log at path at its last so many lines; see [Options].
func openFile(path string, tail int) (file, error) {
	form, err := written(path)
	switch {
	case err != nil:
		return nil, err
	case IsJSON(form):
		return openChain(form, tail)
	default:
		return openPlain(form, tail)
	}
}

// written is the file of the log at path that was written last: a container may
// have got another shim with another margolite.
func written(path string) (string, error) {
	json, err := os.Stat(JSONPath(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	text, plainErr := os.Stat(path)
	switch {
	case err != nil:
		return path, plainErr
	case plainErr == nil && text.ModTime().After(json.ModTime()):
		return path, nil
	default:
		return JSONPath(path), nil
	}
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

// lastLines is where the last n lines before size begin, and how many of them the
// file does not have. A last line without an end is one. Where parts of long lines are
// to be known, these do not count, and from is 0 where the first line may have begun
// in the file before; endless says that a part at the end is a line: no file follows.
func lastLines(f io.ReaderAt, size int64, n int, parts, endless bool) (from int64, missing int, err error) {
	block := make([]byte, blockSize)
	after := size // the end of what is looked at
	for end := size; end > 0; {
		start := max(0, end-blockSize)
		part := block[:end-start]
		if _, err := f.ReadAt(part, start); err != nil && !errors.Is(err, io.EOF) {
			return 0, 0, err
		}
		for i := len(part) - 1; i >= -1; i-- {
			at := start + int64(i) + 1 // where a line of the file begins
			if at == size || i < 0 && at > 0 || i >= 0 && part[i] != '\n' {
				continue
			}
			goesOn := parts && (after < size || !endless)
			if goesOn {
				if goesOn, err = partAt(f, at, after); err != nil {
					return 0, 0, err
				}
			}
			if !goesOn && n == 0 {
				return after, 0, nil
			}
			if !goesOn {
				n--
			}
			after = at
		}
		end = start
	}
	return 0, n, nil
}

// partAt says whether a part of a line lies between two places of a file of JSON.
func partAt(f io.ReaderAt, from, to int64) (bool, error) {
	if to-from < maxText || to-from > maxLine {
		return false, nil
	}
	line := make([]byte, to-from)
	if _, err := f.ReadAt(line, from); err != nil {
		return false, err
	}
	return isPart(parseEntry(line)), nil
}

// links is how many names a file has.
func links(info fs.FileInfo) uint64 {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 1
	}
	return uint64(stat.Nlink)
}
