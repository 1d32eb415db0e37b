package log

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultCap is the size from which a log file of plain text is rotated.
const DefaultCap = 1 << 20

const (
	plainSuffix = ".log"
	jsonSuffix  = "-json.log" // as Docker has it

	partialSuffix = ".partial" // of a file that is not yet what its name says
)

// Path is the log of the container id: the file that a foreign shim writes.
func Path(dir, id string) string { return filepath.Join(dir, id+plainSuffix) }

// JSONPath is the file that our shim writes instead of the one at path.
func JSONPath(path string) string { return strings.TrimSuffix(path, plainSuffix) + jsonSuffix }

// PlainPath is the path of the log that the file at path is of, in either form.
func PlainPath(path string) string {
	if !IsJSON(path) {
		return path
	}
	return strings.TrimSuffix(path, jsonSuffix) + plainSuffix
}

// IsJSON says whether our shim writes the file at path.
func IsJSON(path string) bool { return strings.HasSuffix(path, jsonSuffix) }

// older is the file that holds what the log file at path held before.
func older(path string) string { return numbered(path, 1) }

// numbered is the file that holds what path held n rotations ago.
func numbered(path string, n int) string {
	if n == 0 {
		return path
	}
	return path + "." + strconv.Itoa(n)
}

// rotation is how many rotations ago a file of our shim held what the one with the name
// returned holds now; no name for other files.
func rotation(file string) (name string, n int) {
	before, after, found := strings.Cut(file, jsonSuffix)
	if found && after != "" {
		var err error
		n, err = strconv.Atoi(strings.TrimPrefix(after, "."))
		found = err == nil && n > 0
	}
	if !found {
		return "", 0
	}
	return before + jsonSuffix, n
}

// Rotate moves the content of the plain log file at path aside when it holds cap
// bytes or more, and tells whether it did. A file that does not exist is not
// rotated, nor one of our shim, which does that itself.
//
// The content is copied and the file truncated, since the shim keeps it open. What
// the shim writes between the end of the copy and the truncation is lost: nothing
// can stop it for that moment. The copy is under its final name before anything is
// truncated. Of content that outgrew twice the cap, the copy holds the last cap
// bytes, from the start of a line.
func Rotate(path string, cap int64) (bool, error) {
	if IsJSON(path) {
		return false, nil
	}
	rotated, err := rotate(path, cap)
	if err != nil {
		return false, fmt.Errorf("cannot rotate log: %w", err)
	}
	return rotated, nil
}

func rotate(path string, cap int64) (bool, error) {
	current, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer current.Close()
	// For readers, moving aside and truncating is one change.
	if err := lock(current, unix.LOCK_EX); err != nil {
		return false, err
	}
	info, err := current.Stat()
	if err != nil || info.Size() < cap {
		return false, err
	}

	// The copy never stands under its final name unfinished, should the agent
	// end here.
	partial := path + partialSuffix
	aside, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return false, err
	}
	err = copyTail(aside, current, info.Size(), cap)
	err = errors.Join(err, aside.Close())
	if err == nil {
		err = os.Rename(partial, older(path))
	}
	if err != nil {
		return false, errors.Join(err, os.Remove(partial))
	}
	return true, current.Truncate(0)
}

// copyTail copies the last cap bytes before size, all of them if there are not
// many more, and what is appended meanwhile.
func copyTail(w io.Writer, f *os.File, size, cap int64) error {
	from := int64(0)
	if size > 2*cap {
		start, err := nextLine(f, size-cap)
		if err != nil {
			return err
		}
		from = start
	}
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return err
	}
	_, err := io.Copy(w, f)
	return err
}

// nextLine is where the first line begins at or behind offset; when no line
// begins within a block, offset itself.
func nextLine(f io.ReaderAt, offset int64) (int64, error) {
	if offset == 0 {
		return 0, nil
	}
	block := make([]byte, blockSize)
	n, err := f.ReadAt(block, offset-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	if at := bytes.IndexByte(block[:n], '\n'); at >= 0 {
		return offset + int64(at), nil
	}
	return offset, nil
}

// lock locks a log against rotation or reading until it is unlocked or closed. The
// shim takes no lock and never waits.
func lock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if err != unix.EINTR {
			return os.NewSyscallError("flock", err)
		}
	}
}

// Remove deletes the log at path, in whichever form, with all that was rotated.
func Remove(path string) error {
	names, _ := filepath.Glob(escapeGlob(JSONPath(path)) + ".*") // the pattern is valid
	// The last to go are those that tell who follows the log that it ends.
	names = append(names, older(path), path+partialSuffix, path, JSONPath(path))
	if err := removeAll(names...); err != nil {
		return fmt.Errorf("cannot remove log: %w", err)
	}
	return nil
}

func removeAll(names ...string) error {
	var errs []error
	for _, name := range names {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// escapeGlob makes a name a pattern that only it matches.
func escapeGlob(name string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(name)
}
