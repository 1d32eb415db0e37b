package git

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
)

// maxEntry bounds one entry of a tree as git lists it, and thereby its path.
const maxEntry = 8 << 10

const maxDepth = 32

const (
	plainFile  = "100644"
	groupFile  = "100664" // of very old repositories
	executable = "100755"
	symlink    = "120000"
	submodule  = "160000"
)

type entry struct {
	mode string
	id   string // of the object
	size int64  // -1: not a file
	path string
}

// parseEntry reads an entry of "git ls-tree -r -z --long", without its final zero byte:
//
//	<mode> SP <type> SP <id> SP+ <size> TAB <path>
func parseEntry(line []byte) (entry, error) {
	meta, path, ok := bytes.Cut(line, []byte{'\t'})
	fields := strings.Fields(string(meta))
	if !ok || len(fields) != 4 || len(path) == 0 || !isObjectID(fields[2]) {
		return entry{}, fmt.Errorf("%w: git lists %q", errBroken, margo.Shown(string(line), 100))
	}
	e := entry{mode: fields[0], id: fields[2], size: -1, path: string(path)}
	if fields[3] != "-" {
		size, err := strconv.ParseInt(fields[3], 10, 64)
		if err != nil || size < 0 {
			return entry{}, fmt.Errorf("%w: git lists an object of %q bytes", errBroken, margo.Shown(fields[3], 40))
		}
		e.size = size
	}
	return e, nil
}

// nextEntry reads the next listed entry; io.EOF after the last.
func nextEntry(list *bufio.Reader) (entry, error) {
	line, err := list.ReadSlice(0)
	switch {
	case errors.Is(err, io.EOF) && len(line) == 0:
		return entry{}, io.EOF
	case errors.Is(err, bufio.ErrBufferFull):
		return entry{}, refused(string(line[max(0, len(line)-100):]), "has a path of more than %d bytes", maxEntry)
	case errors.Is(err, io.EOF):
		return entry{}, fmt.Errorf("%w: the list of files is truncated", errShort)
	case err != nil:
		return entry{}, fmt.Errorf("cannot read the output of git: %w", err)
	}
	return parseEntry(line[:len(line)-1])
}

// isObjectID reports whether s is an object id, SHA-1 or SHA-256.
func isObjectID(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

func isYAML(path string) bool {
	path = strings.ToLower(path)
	return strings.HasSuffix(path, ".yaml") || strings.HasSuffix(path, ".yml")
}

// readTree reads the list of everything below folder ("" for the whole tree), and returns the files
// that may hold documents. found reports whether there was any entry.
func readTree(list *bufio.Reader, folder string, l wfm.Limits) (files []entry, found bool, err error) {
	var entries int
	var bytes int64
	for {
		e, err := nextEntry(list)
		switch {
		case errors.Is(err, io.EOF):
			return files, entries > 0, nil
		case err != nil:
			return nil, false, err
		}
		below := e.path
		if folder != "" {
			var ok bool
			if below, ok = strings.CutPrefix(e.path, folder+"/"); !ok {
				return nil, false, nil // the folder is not a directory
			}
		}
		if entries++; entries > l.Entries {
			return nil, false, fmt.Errorf("%w: more than %d files", wfm.ErrTooLarge, l.Entries)
		}
		if strings.Count(below, "/") > maxDepth {
			return nil, false, refused(e.path, "is nested deeper than %d folders", maxDepth)
		}
		switch e.mode {
		case plainFile, groupFile, executable:
		case symlink:
			return nil, false, refused(e.path, "is a symbolic link, which is not followed")
		case submodule:
			return nil, false, refused(e.path, "is another repository (a submodule), which is not fetched")
		default:
			return nil, false, refused(e.path, "has the unknown mode %.10q", e.mode)
		}
		if !isYAML(e.path) {
			continue
		}
		if e.size < 0 || e.size > l.Document {
			return nil, false, fmt.Errorf("%w: %s has more than %d bytes", wfm.ErrTooLarge, margo.Shown(e.path, 200), l.Document)
		}
		if bytes += e.size; bytes > l.Expanded {
			return nil, false, fmt.Errorf("%w: all YAML files together have more than %d bytes", wfm.ErrTooLarge, l.Expanded)
		}
		files = append(files, e)
	}
}

// readObject reads the answer of "git cat-file --batch" to an object's id:
//
//	<id> SP blob SP <size> LF <content> LF
func readObject(r *bufio.Reader, id string, most int64) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: object %s is missing", errShort, id)
	case err != nil && !errors.Is(err, bufio.ErrBufferFull):
		return nil, fmt.Errorf("cannot read the output of git: %w", err)
	}
	fields := strings.Split(strings.TrimSuffix(string(line), "\n"), " ")
	if err != nil || len(fields) != 3 || fields[0] != id || fields[1] != "blob" {
		return nil, fmt.Errorf("%w: git answers %q for object %s", errBroken, margo.Shown(string(line), 100), id)
	}
	size, err := strconv.ParseInt(fields[2], 10, 64)
	switch {
	case err != nil || size < 0:
		return nil, fmt.Errorf("%w: object %s has %q bytes", errBroken, id, margo.Shown(fields[2], 40))
	case size > most:
		return nil, fmt.Errorf("%w: object %s has more than %d bytes", wfm.ErrTooLarge, id, most)
	}
	body := make([]byte, size+1)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, fmt.Errorf("%w: object %s is truncated", errShort, id)
	}
	if body[size] != '\n' {
		return nil, fmt.Errorf("%w: object %s has more than %d bytes", errBroken, id, size)
	}
	return body[:size:size], nil
}

// parseTimes reads the output of "git rev-list --timestamp": the committer time in Unix seconds and
// the id of each commit, one per line, newest first.
func parseTimes(list string) ([]uint64, error) {
	var times []uint64
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) != 2 || !isObjectID(fields[1]) {
			return nil, fmt.Errorf("%w: git lists the commit %q", errBroken, margo.Shown(line, 100))
		}
		seconds, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil || seconds > maxTime {
			return nil, refused("commit "+fields[1], "has an invalid time: %q", margo.Shown(fields[0], 40))
		}
		times = append(times, seconds)
	}
	if len(times) == 0 {
		return nil, fmt.Errorf("%w: git lists no commit", errBroken)
	}
	return times, nil
}

const maxTime = 253402300799

// order computes a commit's version from the committer times of it and its first parents, newest
// first: a thousand times its own, and at least one more than its parent's version. This separates
// commits of one second, and tolerates a committer's clock that was ahead of the next one's.
func order(times []uint64) uint64 {
	var version uint64
	for i := len(times) - 1; i >= 0; i-- {
		version = max(times[i]*1000, version+1)
	}
	return version
}
