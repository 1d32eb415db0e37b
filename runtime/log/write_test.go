package log_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/log"
	"github.com/margolite/margolite/test/expect"
)

// line is one of a file as other programs read it.
type line struct {
	Log    string    `json:"log"`
	Stream string    `json:"stream"`
	Time   time.Time `json:"time"`
}

func linesOf(t *testing.T, path string) []line {
	t.Helper()
	var lines []line
	for text := range strings.Lines(content(t, path)) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil || !strings.HasSuffix(text, "}\n") {
			t.Fatalf("line %q: %v", text, err)
		}
		lines = append(lines, l)
	}
	return lines
}

func TestWriter(t *testing.T) {
	long := strings.Repeat("x", 16<<10-1)
	for name, c := range map[string]struct {
		printed string
		want    []string
	}{
		"lines":                       {"a\n\nb\n", []string{"a\n", "\n", "b\n"}},
		"a last line without an end":  {"a\nb", []string{"a\n", "b"}},
		"what JSON escapes":           {"\"\\\t\r\x00\x1b[1m<&>\u2028\n", []string{"\"\\\t\r\x00\x1b[1m<&>\u2028\n"}},
		"what is no UTF-8":            {"a\xffb\xc3\n", []string{"a\ufffdb\ufffd\n"}},
		"characters":                  {"grüße 世界\n", []string{"grüße 世界\n"}},
		"a line of 16 KiB":            {long + "\n", []string{long + "\n"}},
		"longer lines in parts":       {long + "yz\n", []string{long + "y", "z\n"}},
		"parts between characters":    {long + "世\n", []string{long, "世\n"}},
		"many parts":                  {strings.Repeat("x", 64<<10), []string{long + "x", long + "x", long + "x", long + "x"}},
		"parts of what is no UTF-8":   {long + "\xff\xff\n", []string{long + "\ufffd", "\ufffd\n"}},
		"nothing of what is not said": {"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			for how, reader := range map[string]func(io.Reader) io.Reader{
				"at once":   func(r io.Reader) io.Reader { return r },
				"bytewise":  iotest.OneByteReader,
				"with EOF":  iotest.DataErrReader,
				"in halves": iotest.HalfReader,
			} {
				path := log.Path(t.TempDir(), "c")
				before := time.Now()
				log.NewWriter(path, log.Keep{}).Copy(log.Stderr, reader(strings.NewReader(c.printed)))
				if len(c.want) == 0 {
					expect.Error(t, expect.ErrorOf(os.Stat(path)), os.ErrNotExist, "%s: a file", how)
					continue
				}
				got := linesOf(t, path)
				expect.Require(t, len(got) == len(c.want), "%s: %d lines, want %d", how, len(got), len(c.want))
				for i, l := range got {
					if l.Log != c.want[i] || l.Stream != "stderr" || l.Time.Before(before.Truncate(0)) || l.Time.After(time.Now()) {
						t.Errorf("%s: line %d is %.40q of %s at %s, want %.40q", how, i, l.Log, l.Stream, l.Time, c.want[i])
					}
				}
			}
		})
	}
}

func TestWriterRotates(t *testing.T) {
	for name, c := range map[string]struct {
		files int
		want  []string
	}{
		"one file":    {1, []string{""}},
		"two files":   {2, []string{"", ".1"}},
		"three files": {3, []string{"", ".1", ".2"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := log.Path(dir, "c")
			w := log.NewWriter(path, log.Keep{MaxSize: 4 << 10, MaxFile: c.files})
			const count = 1000
			for n := range count {
				w.Copy(log.Stdout, strings.NewReader(fmt.Sprintf("%d\n", n)))
			}
			next := count - 1
			for i, suffix := range c.want {
				file := path + suffix
				if info, err := os.Stat(file); err != nil || info.Size() > 4<<10 || info.Mode() != 0o640 {
					t.Errorf("%v, %v", info, err)
				}
				lines := linesOf(t, file)
				expect.True(t, i <= 0 || len(lines) >= 10, "%s has %d lines only", file, len(lines))
				for j := len(lines) - 1; j >= 0; j-- {
					if want := fmt.Sprintf("%d\n", next); lines[j].Log != want {
						t.Fatalf("%s: %q, want %q", file, lines[j].Log, want)
					}
					next--
				}
			}
			expect.Equal(t, len(expect.Value(filepath.Glob(dir+"/*"))(t)), c.files, "files")
			for range 2 { // the second time there is nothing
				check(t, log.Remove(path))
			}
			expect.Equal(t, expect.Value(filepath.Glob(dir+"/*"))(t), nil, "left behind")
		})
	}
}

func TestWriterGoesOnWhereAKilledOneStopped(t *testing.T) {
	path := log.Path(t.TempDir(), "c")
	check(t, os.WriteFile(path, []byte(`{"log":"half a li`), 0o640))
	log.NewWriter(path, log.Keep{}).Copy(log.Stdout, strings.NewReader("next\n"))
	first, rest, _ := strings.Cut(content(t, path), "\n")
	expect.True(t, first == `{"log":"half a li` && strings.HasPrefix(rest, `{"log":"next\n"`), "got %q and %q", first, rest)
}

// smallFileSystem is where a file system of its own size is mounted.
func smallFileSystem(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("needs to mount a tmpfs:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// A container that prints a lot takes the room for logs from no other one, and still
// has its own last lines.
func TestLargestLogGivesWay(t *testing.T) {
	for name, files := range map[string]int{"one file": 1, "several files": 5} {
		t.Run(name, func(t *testing.T) {
			dir := smallFileSystem(t, "256k")
			noisy := log.NewWriter(log.Path(dir, "noisy"), log.Keep{MaxSize: 1 << 20 / int64(files), MaxFile: files})
			quiet := log.NewWriter(log.Path(dir, "quiet"), log.Keep{})
			const rounds = 20
			for n := range rounds {
				noisy.Copy(log.Stdout, strings.NewReader(strings.Repeat(strings.Repeat("x", 99)+"\n", 1000)+fmt.Sprintf("noisy %d\n", n)))
				quiet.Copy(log.Stdout, strings.NewReader(fmt.Sprintf("%01000d\n", n)))
			}
			lines := linesOf(t, log.Path(dir, "quiet"))
			if len(lines) != rounds || lines[rounds-1].Log != fmt.Sprintf("%01000d\n", rounds-1) {
				t.Errorf("of the quiet one there are %d lines, the last %q", len(lines), lines[len(lines)-1].Log)
			}
			lines = linesOf(t, log.Path(dir, "noisy"))
			expect.Equal(t, lines[len(lines)-1].Log, fmt.Sprintf("noisy %d\n", rounds-1), "the last line of the noisy one")
		})
	}
}

// A full file system takes no output away from what comes when there is room
// again, and does not hold up the container.
func TestWriterOnAFullFileSystem(t *testing.T) {
	dir := smallFileSystem(t, "64k")
	path := log.Path(dir, "c")
	w := log.NewWriter(path, log.Keep{MaxSize: 1 << 20})
	w.Copy(log.Stdout, strings.NewReader("first\n"))
	ballast := filepath.Join(dir, "ballast")
	_ = os.WriteFile(ballast, make([]byte, 1<<20), 0o600) // as much as fits
	printed := bytes.Repeat([]byte(strings.Repeat("x", 99)+"\n"), 1000)
	w.Copy(log.Stdout, bytes.NewReader(printed))
	check(t, os.Remove(ballast))
	w.Copy(log.Stdout, strings.NewReader("last\n"))

	lines := linesOf(t, path) // none is torn
	var dropped int
	notice := lines[len(lines)-2]
	if _, err := fmt.Sscanf(notice.Log, "margolite: %d lines of output are lost\n", &dropped); err != nil || notice.Stream != "stderr" {
		t.Fatalf("line %+v: %v", notice, err)
	}
	if lines[0].Log != "first\n" || lines[len(lines)-1].Log != "last\n" || dropped+len(lines)-3 != 1000 || dropped < 500 {
		t.Errorf("%d lines, %d dropped, from %q to %q", len(lines), dropped, lines[0].Log, lines[len(lines)-1].Log)
	}
}

func TestWriterWithoutADirectoryDropsOutput(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	w := log.NewWriter(log.Path(dir, "c"), log.Keep{})
	w.Copy(log.Stdout, strings.NewReader("a\nb\n"))
	check(t, os.Mkdir(dir, 0o755))
	w.Copy(log.Stdout, strings.NewReader("c\n"))
	lines := linesOf(t, log.Path(dir, "c"))
	expect.True(t, len(lines) == 2 && strings.Contains(lines[0].Log, " 2 lines ") && lines[1].Log == "c\n", "got %+v", lines)
}

// A container that prints without end gets its log no faster than the throttle lets
// it, whatever its lines are like, and loses none.
func TestWriterThrottlesAFlood(t *testing.T) {
	const rate, burst, slack = 4 << 20, 8 << 20, 2 << 20
	for name, text := range map[string]string{"short lines": "y\n", "long lines": strings.Repeat("x", 999) + "\n"} {
		t.Run(name, func(t *testing.T) {
			path := log.Path(t.TempDir(), "c")
			var took time.Duration
			synctest.Test(t, func(t *testing.T) {
				w := log.NewWriter(path, log.Keep{MaxSize: 1 << 30})
				printed := strings.Repeat(text, (32<<20)/(len(text)+70))
				began := time.Now()
				var both sync.WaitGroup
				for _, stream := range []string{log.Stdout, log.Stderr} {
					both.Go(func() { w.Copy(stream, strings.NewReader(printed)) })
				}
				both.Wait()
				took = time.Since(began)
				expect.Equal(t, strings.Count(content(t, path), "\n"), 2*strings.Count(printed, "\n"), "lines kept")
			})
			info := expect.Value(os.Stat(path))(t)
			if allowed := int64(took.Seconds()*rate) + burst + slack; info.Size() > allowed {
				t.Errorf("%d bytes in %s, more than %d", info.Size(), took, allowed)
			}
			if info.Size() < int64(took.Seconds()*rate) {
				t.Errorf("%d bytes in %s: it was slowed down by more than the rate", info.Size(), took)
			}
		})
	}
}

func TestWriterTakesTheRestOfAContainerThatEnded(t *testing.T) {
	path := log.Path(t.TempDir(), "c")
	synctest.Test(t, func(t *testing.T) {
		w := log.NewWriter(path, log.Keep{MaxSize: 1 << 30})
		began := time.Now()
		done := make(chan struct{})
		go func() { defer close(done); w.Copy(log.Stdout, strings.NewReader(strings.Repeat("y\n", 1<<19))) }()
		synctest.Wait() // it is slowed down
		w.Unthrottle()
		w.Unthrottle()
		<-done
		if took := time.Since(began); took > 0 {
			t.Errorf("the rest took %s", took)
		}
	})
	expect.Equal(t, strings.Count(content(t, path), "\n"), 1<<19, "lines kept")
}
