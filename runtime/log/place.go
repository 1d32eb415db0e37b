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

// links is how many names a file has.
func links(info fs.FileInfo) uint64 {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 1
	}
	return uint64(stat.Nlink)
}
