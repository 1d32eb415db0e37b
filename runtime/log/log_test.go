package log_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/log"
	"github.com/margolite/margolite/test/expect"
)

// write makes a log of the content of its older and its current file.
func write(t *testing.T, before, current string) string {
	t.Helper()
	path := log.Path(t.TempDir(), "c1")
	for file, text := range map[string]string{path + ".1": before, path: current} {
		written := log.Path(t.TempDir(), "w")
		w := log.NewWriter(written, log.Keep{})
		check(t, w.Open())
		w.Copy(log.Stdout, strings.NewReader(text))
		check(t, errors.Join(w.Close(), os.Rename(written, file)))
	}
	return path
}

var check = expect.Check

func content(t *testing.T, path string) string {
	t.Helper()
	b := expect.Value(os.ReadFile(path))(t)
	return string(b)
}

func TestRead(t *testing.T) {
	long := strings.Repeat("x", 100_000) + "\n"
	for name, c := range map[string]struct {
		before, current string
		tail            int
		want            string
	}{
		"copies both files":                     {"a\n", "b\nc\n", 0, "a\nb\nc\n"},
		"copies a line without an end":          {"", "b\nc", 0, "b\nc"},
		"copies nothing of an empty log":        {"", "", 5, ""},
		"copies nothing of the past if told":    {"a\n", "b\n", -1, ""},
		"copies the last line":                  {"a\n", "b\nc\n", 1, "c\n"},
		"counts a last line without an end":     {"a\n", "b\nc\nd", 2, "c\nd"},
		"takes missing lines of the older file": {"a\nb\n", "c\nd\n", 3, "b\nc\nd\n"},
		"copies all when more is asked for":     {"a\nb\n", "c\n", 10, "a\nb\nc\n"},
		"takes all from the older file":         {"a\nb\nc\n", "", 2, "b\nc\n"},
		"finds lines longer than a block":       {"a\n", long + long + "b\n", 2, long + "b\n"},
		"counts empty lines":                    {"", "a\n\n\n", 2, "\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, c.before, c.current)
			var got bytes.Buffer
			check(t, log.Read(t.Context(), path, log.Options{Tail: c.tail}, &got))
			if got.String() != c.want {
				t.Errorf("got %.80q (%d bytes), want %.80q (%d bytes)", got.String(), got.Len(), c.want, len(c.want))
			}
		})
	}
	t.Run("tells when there is no log", func(t *testing.T) {
		err := log.Read(t.Context(), log.Path(t.TempDir(), "none"), log.Options{Follow: true}, io.Discard)
		expect.Error(t, err, fs.ErrNotExist, "error")
	})
	t.Run("passes on the error of the writer", func(t *testing.T) {
		r, w := io.Pipe()
		r.Close()
		expect.Error(t, log.Read(t.Context(), write(t, "", "a\n"), log.Options{}, w), io.ErrClosedPipe, "error")
	})
}

func TestFollow(t *testing.T) {
	path := write(t, "a\n", "b\n")
	ctx, stop := context.WithCancel(t.Context())
	m, entries, end := merged(ctx, t, log.Options{Follow: true}, log.Source{Name: "c", Path: path})
	m.Seal()
	expectEntries(t, entries, "c a", "c b")
	log.NewWriter(path, log.Keep{}).Copy(log.Stdout, strings.NewReader("c\nd\n"))
	expectEntries(t, entries, "c c", "c d")
	stop() // while the log is quiet
	expect.Error(t, end(), nil, "error")
}
