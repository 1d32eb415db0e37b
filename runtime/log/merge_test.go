package log_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/runtime/log"
	"github.com/margolite/margolite/test/expect"
)

func stamp(seconds int) time.Time { return time.Unix(1_700_000_000+int64(seconds), 0).UTC() }

// writeJSON makes the current file of a log of lines "second stream text".
func writeJSON(t *testing.T, path string, lines ...string) {
	t.Helper()
	var b strings.Builder
	for _, l := range lines {
		var second int
		var stream, text string
		if _, err := fmt.Sscan(l, &second, &stream, &text); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, `{"log":"%s\n","stream":"%s","time":"%s"}`+"\n", text, stream, stamp(second).Format(time.RFC3339Nano))
	}
	check(t, os.WriteFile(path, []byte(b.String()), 0o640))
}

func TestMerge(t *testing.T) {
	dir := t.TempDir()
	web, db, none := log.Path(dir, "web"), log.Path(dir, "db"), log.Path(dir, "none")
	writeJSON(t, web+".1", "1 stdout one", "3 stderr three")
	writeJSON(t, web, "5 stdout five", "7 stdout seven")
	writeJSON(t, db, "2 stdout two", "4 stdout four", "6 stderr six")
	both := []log.Source{{Name: "web", Path: web}, {Name: "db", Path: db}}
	for name, c := range map[string]struct {
		sources []log.Source
		o       log.Options
		want    string
	}{
		"by time":                {both, log.Options{}, "web one, db two, web three, db four, web five, db six, web seven"},
		"the last of each":       {both, log.Options{Tail: 1}, "db six, web seven"},
		"from a time":            {both, log.Options{Since: stamp(5)}, "web five, db six, web seven"},
		"up to a time":           {both, log.Options{Until: stamp(3)}, "web one, db two, web three"},
		"between":                {both, log.Options{Since: stamp(3), Until: stamp(4)}, "web three, db four"},
		"followed up to a time":  {both, log.Options{Until: stamp(2), Follow: true}, "web one, db two"},
		"none that is not there": {[]log.Source{{Name: "none", Path: none}}, log.Options{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			m := log.NewMerge(c.o)
			for _, s := range c.sources {
				m.Add(s)
				m.Add(s) // once is enough
			}
			m.Seal()
			expect.OK(t, m.Run(t.Context(), func(e log.Entry) error {
				got = append(got, e.Source+" "+strings.TrimSuffix(string(e.Text), "\n"))
				return nil
			}))
			expect.Equal(t, strings.Join(got, ", "), c.want, "entries")
		})
	}
}

// What a program printed as one line is one, over rotations and with another stream in between.
func TestALongLineIsReadAsOne(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 12_500)
	const most = 1 << 20
	say := func(path string, keep log.Keep, texts ...string) {
		w := log.NewWriter(path, keep)
		for _, text := range texts {
			stream := map[bool]string{true: log.Stderr, false: log.Stdout}[strings.HasPrefix(text, "warning")]
			w.Copy(stream, strings.NewReader(text))
		}
	}
	for name, c := range map[string]struct {
		keep    log.Keep
		printed []string
		tail    int
		want    []string
	}{
		"one line":              {printed: []string{"a\n" + long + "\nb\n"}, want: []string{"a\n", long + "\n", "b\n"}},
		"the last of it":        {printed: []string{"a\n" + long + "\nb\n"}, tail: 1, want: []string{"b\n"}},
		"the last two":          {printed: []string{"a\n" + long + "\nb\n"}, tail: 2, want: []string{long + "\n", "b\n"}},
		"all three":             {printed: []string{"a\n" + long + "\nb\n"}, tail: 3, want: []string{"a\n", long + "\n", "b\n"}},
		"the last without end":  {printed: []string{"a\n" + long + "\n" + long[:32<<10]}, tail: 2, want: []string{long + "\n", long[:32<<10]}},
		"a line without an end": {printed: []string{"a\n" + long, "b\n"}, tail: 2, want: []string{long, "b\n"}},
		"what was rotated":      {keep: log.Keep{MaxSize: 64 << 10, MaxFile: 9}, printed: []string{"a\n" + long + "\nb\n"}, tail: 2, want: []string{long + "\n", "b\n"}},
		"another stream":        {printed: []string{long[:16<<10], "warning\n", long[16<<10:] + "\n"}, want: []string{"warning\n", long + "\n"}},
		"more than a line may have": {
			printed: []string{strings.Repeat("x", most+5) + "\n"},
			want:    []string{strings.Repeat("x", most) + " [the line goes on]\n", "xxxxx\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := log.Path(t.TempDir(), "c")
			say(path, c.keep, c.printed...)
			m := log.NewMerge(log.Options{Tail: c.tail})
			m.Add(log.Source{Name: "c", Path: path})
			m.Seal()
			var got []string
			check(t, m.Run(t.Context(), func(e log.Entry) error { got = append(got, string(e.Text)); return nil }))
			if !slices.Equal(got, c.want) {
				for _, text := range got {
					t.Logf("%d bytes: %.40q", len(text), text)
				}
				t.Errorf("%d lines, want %d", len(got), len(c.want))
			}
		})
	}
}

// merged runs a Merge in the background.
func merged(ctx context.Context, t *testing.T, o log.Options, first log.Source) (*log.Merge, <-chan string, func() error) {
	t.Helper()
	ctx, stop := context.WithCancel(ctx)
	t.Cleanup(stop)
	m := log.NewMerge(o)
	m.Add(first)
	entries, done := make(chan string, 100_000), make(chan error, 1)
	go func() {
		done <- m.Run(ctx, func(e log.Entry) error {
			entries <- e.Source + " " + strings.TrimSuffix(string(e.Text), "\n")
			return nil
		})
	}()
	return m, entries, func() error {
		t.Helper()
		return expect.Receive(t, "it ends", done)
	}
}

func expectEntries(t *testing.T, entries <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		got := expect.Receive(t, w+" comes", entries)
		expect.Require(t, got == w, "got %q, want %q", got, w)
	}
}

func TestMergeTakesFurtherLogs(t *testing.T) {
	dir := t.TempDir()
	paths := []string{log.Path(dir, "a"), log.Path(dir, "b")}
	say := func(path, text string) {
		log.NewWriter(path, log.Keep{}).Copy(log.Stdout, strings.NewReader(text))
	}
	say(paths[0], "past\n")
	m, entries, end := merged(t.Context(), t, log.Options{Follow: true, Tail: -1}, log.Source{Name: "web-1", Path: paths[0]})
	// When it has begun cannot be seen from here: speak until it listens.
	for n := 0; len(entries) == 0; n++ {
		say(paths[0], "now\n")
	}
	expectEntries(t, entries, "web-1 now")
	say(paths[0], "listening\n")
	for got := range entries {
		if got == "web-1 listening" {
			break
		}
	}

	// The container is made anew: the next one is added before it prints, or after.
	m.Add(log.Source{Name: "web-1", Path: paths[1]})
	say(paths[1], "anew\n")
	for got := range entries {
		if got == "web-1 anew" {
			break
		}
	}
	check(t, log.Remove(paths[0]))
	say(paths[1], "further\n")
	expectEntries(t, entries, "web-1 further")
	// The one that was removed starts again.
	m.Add(log.Source{Name: "web-1", Path: paths[0]})
	say(paths[0], "again\n")
	expectEntries(t, entries, "web-1 again")
	m.Seal()
	for _, path := range paths {
		check(t, log.Remove(path))
	}
	expect.OK(t, end())
}

// Whoever keeps up sees every line, however often the shim rotates.
func TestMergeFollowsRotations(t *testing.T) {
	for _, files := range []int{2, 5} {
		t.Run(fmt.Sprint(files, " files"), func(t *testing.T) {
			path := log.Path(t.TempDir(), "c")
			w := log.NewWriter(path, log.Keep{MaxSize: 4 << 10, MaxFile: files})
			m, entries, end := merged(t.Context(), t, log.Options{Follow: true}, log.Source{Name: "c", Path: path})
			const count = 3000
			for n := range count {
				w.Copy(log.Stdout, strings.NewReader(fmt.Sprintf("%d\n", n)))
				if n%10 == 9 {
					for i := n - 9; i <= n; i++ {
						expectEntries(t, entries, fmt.Sprint("c ", i))
					}
				}
			}
			m.Seal()
			check(t, log.Remove(path))
			expect.OK(t, end())
		})
	}
}

// Whoever is slower misses lines, but sees none twice, torn or out of order, and
// the end in any case.
func TestMergeWhileBeingRotatedFast(t *testing.T) {
	for _, files := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(files, " files"), func(t *testing.T) {
			path := log.Path(t.TempDir(), "c")
			w := log.NewWriter(path, log.Keep{MaxSize: 4 << 10, MaxFile: files})
			_, entries, _ := merged(t.Context(), t, log.Options{Follow: true}, log.Source{Name: "c", Path: path})
			const count = 20_000
			for n := range count {
				w.Copy(log.Stdout, strings.NewReader(fmt.Sprintf("%06d\n", n)))
			}
			seen, previous := 0, -1
			for previous < count-1 {
				entry := expect.Receive(t, "more comes", entries)
				var n int
				if _, err := fmt.Sscanf(entry, "c %06d", &n); err != nil || len(entry) != 8 || n <= previous {
					t.Fatalf("%q after %d", entry, previous)
				}
				seen, previous = seen+1, n
			}
			t.Logf("%d of %d lines seen", seen, count)
		})
	}
}

func TestMergePassesOverWhatIsNoEntry(t *testing.T) {
	path := log.Path(t.TempDir(), "c")
	text := `{"log":"a\n","stream":"stdout","time":"2026-01-01T00:00:00Z"}` + "\n" +
		"garbage\n" + `{"log":"half` + "\n" + strings.Repeat("x", 300_000) + "\n" +
		`{"log":"b\n","stream":"stderr","time":"2026-01-01T00:00:01Z"}` + "\n" + `{"log":"under way`
	check(t, os.WriteFile(path, []byte(text), 0o640))
	var got bytes.Buffer
	check(t, log.Read(t.Context(), path, log.Options{}, &got))
	if want := "a\ngarbage\n{\"log\":\"half\n" + strings.Repeat("x", 300_000) + "\nb\n"; got.String() != want {
		t.Errorf("got %d bytes: %.60q", got.Len(), got.String())
	}
}

// FuzzRead takes any file for a log: nothing makes it fail, end late or grow.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"log":"a\n","stream":"stdout","time":"2026-01-01T00:00:00Z"}`+"\n"), 1)
	f.Add([]byte("{\"log\":\"\\u0000\\ud800\"}\n{}\n[]\nnull\n{\"log\":1}\n"), 0)
	f.Add([]byte("\n\n{\"log\":\"x\",\"time\":\"9999\"}\n"), 2)
	f.Fuzz(func(t *testing.T, text []byte, tail int) {
		path := log.Path(t.TempDir(), "c")
		check(t, os.WriteFile(path, text, 0o640))
		var got, plain bytes.Buffer
		check(t, log.Read(t.Context(), path, log.Options{Tail: tail}, &got))
		if got.Len() > 3*len(text) { // U+FFFD has three bytes
			t.Errorf("%d bytes of %d", got.Len(), len(text))
		}
		// What is written comes back.
		again := log.Path(t.TempDir(), "c")
		log.NewWriter(again, log.Keep{}).Copy(log.Stdout, bytes.NewReader(text))
		if err := log.Read(t.Context(), again, log.Options{}, &plain); len(text) > 0 && err != nil {
			t.Fatal(err)
		}
		if want := bytes.ToValidUTF8(text, nil); len(text) < 4<<10 && !bytes.Equal(bytes.ReplaceAll(plain.Bytes(), []byte("\ufffd"), nil), bytes.ReplaceAll(want, []byte("\ufffd"), nil)) {
			t.Errorf("got %q of %q", plain.Bytes(), text)
		}
	})
}
