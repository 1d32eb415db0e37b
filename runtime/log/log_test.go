package log_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime/log"
)

// write makes a log of the content of its older and its current file.
func write(t *testing.T, before, current string) string {
	t.Helper()
	path := log.Path(t.TempDir(), "c1")
	if before != "" {
		if err := os.WriteFile(path+".1", []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, []byte(current), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPathIsNamedAfterTheContainer(t *testing.T) {
	if got, want := log.Path("/run/logs", "abc"), "/run/logs/abc.log"; got != want {
		t.Errorf("path %q, want %q", got, want)
	}
}

func TestRotate(t *testing.T) {
	for name, c := range map[string]struct {
		before, current         string
		cap                     int64
		rotated                 bool
		wantBefore, wantCurrent string
	}{
		"leaves a log below its cap alone":         {"", "a\nb\n", 5, false, "", "a\nb\n"},
		"moves a log at its cap aside":             {"", "a\nb\n", 4, true, "a\nb\n", ""},
		"drops what was moved aside before":        {"older\n", "a\nb\n", 4, true, "a\nb\n", ""},
		"keeps all of what is a little above it":   {"", "one\ntwo\n", 5, true, "one\ntwo\n", ""},
		"keeps whole lines of what outgrew a cap":  {"", "one\ntwo\nthree\n", 6, true, "three\n", ""},
		"keeps the line that begins at the bound":  {"", "one\nsix\ntwo\n", 4, true, "two\n", ""},
		"cuts a line that is longer than the rest": {"", strings.Repeat("x", 100), 10, true, strings.Repeat("x", 10), ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, c.before, c.current)
			rotated, err := log.Rotate(path, c.cap)
			if err != nil || rotated != c.rotated {
				t.Fatalf("rotated: %v, %v; want %v", rotated, err, c.rotated)
			}
			if got := content(t, path); got != c.wantCurrent {
				t.Errorf("log is %q, want %q", got, c.wantCurrent)
			}
			if !c.rotated {
				return
			}
			if got := content(t, path+".1"); got != c.wantBefore {
				t.Errorf("older log is %q, want %q", got, c.wantBefore)
			}
		})
	}
	t.Run("leaves the log of our shim to it", func(t *testing.T) {
		path := log.JSONPath(write(t, "", ""))
		if err := os.WriteFile(path, []byte("{}\n"), 0o640); err != nil {
			t.Fatal(err)
		}
		if rotated, err := log.Rotate(path, 1); err != nil || rotated {
			t.Errorf("rotated: %v, %v", rotated, err)
		}
	})
	t.Run("passes over a log that does not exist", func(t *testing.T) {
		rotated, err := log.Rotate(log.Path(t.TempDir(), "none"), 1)
		if err != nil || rotated {
			t.Errorf("rotated: %v, %v", rotated, err)
		}
	})
}

func TestRemoveDeletesEveryFileOfALog(t *testing.T) {
	path := write(t, "a\n", "b\n")
	for range 2 { // the second time there is nothing
		if err := log.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
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
			if err := log.Read(t.Context(), path, log.Options{Tail: c.tail}, &got); err != nil {
				t.Fatal(err)
			}
			if got.String() != c.want {
				t.Errorf("got %.80q (%d bytes), want %.80q (%d bytes)", got.String(), got.Len(), c.want, len(c.want))
			}
		})
	}
	t.Run("tells when there is no log", func(t *testing.T) {
		err := log.Read(t.Context(), log.Path(t.TempDir(), "none"), log.Options{Follow: true}, io.Discard)
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error %v, want fs.ErrNotExist", err)
		}
	})
	t.Run("passes on the error of the writer", func(t *testing.T) {
		r, w := io.Pipe()
		r.Close()
		if err := log.Read(t.Context(), write(t, "", "a\n"), log.Options{}, w); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("error %v, want io.ErrClosedPipe", err)
		}
	})
}

// follower reads a log in the background, line by line.
type follower struct {
	t     *testing.T
	lines chan string
	stop  context.CancelFunc
	done  chan error
}

func follow(t *testing.T, path string, tail int) *follower {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	f := &follower{t: t, lines: make(chan string, 100_000), stop: stop, done: make(chan error, 1)}
	lines := &lineWriter{lines: f.lines}
	go func() { f.done <- log.Read(ctx, path, log.Options{Tail: tail, Follow: true}, lines) }()
	t.Cleanup(stop)
	return f
}

func (f *follower) expect(lines ...string) {
	f.t.Helper()
	for _, want := range lines {
		select {
		case got := <-f.lines:
			if got != want {
				f.t.Fatalf("line %q, want %q", got, want)
			}
		case <-time.After(20 * time.Second):
			f.t.Fatalf("no line, want %q", want)
		}
	}
}

func (f *follower) end() error {
	select {
	case err := <-f.done:
		return err
	case <-time.After(20 * time.Second):
		f.t.Fatal("reading does not end")
		return nil
	}
}

type lineWriter struct {
	lines chan<- string
	rest  []byte
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		line, rest, found := bytes.Cut(w.rest, []byte("\n"))
		if !found {
			return len(b), nil
		}
		w.lines <- string(line)
		w.rest = rest
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func rotateAt(t *testing.T, path string, cap int64) {
	t.Helper()
	if rotated, err := log.Rotate(path, cap); err != nil || !rotated {
		t.Fatalf("rotated: %v, %v", rotated, err)
	}
}

func TestFollow(t *testing.T) {
	rotate := func(t *testing.T, path string) { rotateAt(t, path, 5) }
	t.Run("goes on with what is appended", func(t *testing.T) {
		path := write(t, "a\n", "b\n")
		f := follow(t, path, 0)
		f.expect("a", "b")
		appendTo(t, path, "c\nd")
		f.expect("c")
		appendTo(t, path, "e\n")
		f.expect("de")
		f.stop()
		if err := f.end(); err != nil {
			t.Errorf("error %v", err)
		}
	})
	t.Run("goes on after a rotation", func(t *testing.T) {
		path := write(t, "", "a\n")
		f := follow(t, path, 0)
		f.expect("a")
		for n := range 20 {
			line := fmt.Sprintf("line %d", n)
			appendTo(t, path, line+"\n")
			f.expect(line)
			rotate(t, path)
		}
	})
	t.Run("notices that a log was filled again to where it was", func(t *testing.T) {
		path := write(t, "", "aaaa\n")
		f := follow(t, path, 0)
		f.expect("aaaa")
		rotate(t, path)
		appendTo(t, path, "bbbb\n")
		f.expect("bbbb")
		rotate(t, path)
		appendTo(t, path, "cccccc\n")
		f.expect("cccccc")
	})
	t.Run("begins with what comes when told so", func(t *testing.T) {
		path := write(t, "a\n", "b\n")
		f := follow(t, path, -1)
		// Whether the reader has begun cannot be seen from here: write until
		// it gets something.
		for n := 0; len(f.lines) == 0; n++ {
			appendTo(t, path, "c\n")
		}
		f.expect("c")
	})
	t.Run("goes on with what is left after it was held up", func(t *testing.T) {
		for name, c := range map[string]struct {
			start     string
			rotations []string // what is appended before each rotation
			cap       int64
			want      string
		}{
			"for one rotation":            {"first\n", []string{"1\n2\n"}, 1 << 20, "first\n1\n2\nlast\n"},
			"for several rotations":       {"first\n", []string{"1\n", "2\n", "3\n"}, 1 << 20, "first\n3\nlast\n"},
			"while the front was dropped": {"first\n", []string{"1\n2\n3\n4\n5\n6\n7\n8\n"}, 4, "first\n7\n8\nlast\n"},
			"in a line, for one rotation": {"first\nhalf", []string{" done\n1\n2\n"}, 1 << 20, "first\nhalf done\n1\n2\nlast\n"},
			"in a line, for several":      {"first\nhalf", []string{" lost\n", "2\n", "3\n"}, 1 << 20, "first\nhalf\n3\nlast\n"},
		} {
			t.Run(name, func(t *testing.T) {
				path := write(t, "", c.start)
				r, w := io.Pipe()
				defer r.Close()
				go func() {
					w.CloseWithError(log.Read(t.Context(), path, log.Options{Follow: true}, w))
				}()
				got := make([]byte, len(c.want))
				if _, err := io.ReadFull(r, got[:1]); err != nil { // from here on it is held up
					t.Fatal(err)
				}
				for _, text := range c.rotations {
					appendTo(t, path, text)
					rotateAt(t, path, min(c.cap, int64(len(text))))
				}
				appendTo(t, path, "last\n")
				if _, err := io.ReadFull(r, got[1:]); err != nil || string(got) != c.want {
					t.Errorf("got %q, %v; want %q", got, err, c.want)
				}
			})
		}
	})
	t.Run("ends when the log is removed", func(t *testing.T) {
		path := write(t, "", "a\n")
		f := follow(t, path, 0)
		f.expect("a")
		if err := log.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := f.end(); err != nil {
			t.Errorf("error %v", err)
		}
	})
	t.Run("ends with its context while the log is quiet", func(t *testing.T) {
		f := follow(t, write(t, "", "a\n"), 0)
		f.expect("a")
		f.stop()
		if err := f.end(); err != nil {
			t.Errorf("error %v", err)
		}
	})
}

// The shim appends while the agent rotates and several people read. Rotation may
// lose what is written while it truncates, and a reader that gets no processor what
// is dropped meanwhile, but nothing may come twice, torn or out of order.
func TestFollowWhileBeingWrittenAndRotated(t *testing.T) {
	const (
		count = 20_000
		last  = "end"
	)
	path := write(t, "", "")
	followers := []*follower{follow(t, path, 0), follow(t, path, 0)}

	var writing sync.WaitGroup
	stop := make(chan struct{})
	writing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := log.Rotate(path, 16<<10); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for n := range count {
		appendTo(t, path, fmt.Sprintf("%06d\n", n))
	}
	close(stop)
	writing.Wait()
	appendTo(t, path, last+"\n")

	for _, f := range followers {
		seen, previous := 0, -1
		for line := range f.lines {
			if line == last {
				break
			}
			var n int
			if _, err := fmt.Sscanf(line, "%06d", &n); err != nil || len(line) != 6 {
				t.Fatalf("torn line %q after %d", line, previous)
			}
			if n <= previous {
				t.Fatalf("line %d after %d", n, previous)
			}
			seen, previous = seen+1, n
		}
		t.Logf("%d of %d lines seen", seen, count)
		if seen == 0 {
			t.Error("no line seen before the last")
		}
	}
}
