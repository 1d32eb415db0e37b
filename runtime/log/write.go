package log

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	firstBuffer = 4 << 10 // of one stream; grows up to maxText for longer lines
	enoughOut   = 8 << 10 // bytes that are written at once, about
	maxKeptOut  = 32 << 10
	maxRoomMade = 4 // attempts to make room for one write
)

// Mode is the mode of log files: output may be confidential.
const Mode = 0o640

// Writer keeps a container's output in the log at a path, as lines of JSON, and rotates it. It
// runs in the shim or in [Serve]; the container depends on its reading.
//
// The file is opened for the first write at the latest. What cannot be written is dropped,
// and counted in a line of the log once there is space again.
//
// A container that prints without end is slowed down: the shim is outside its control group,
// and would use a processor that the container may not use. Its pipe fills up, and its next
// write waits; nothing is lost.
type Writer struct {
	path  string
	keep  Keep
	ended chan struct{} // closed by Unthrottle
	end   sync.Once

	mu      sync.Mutex // both streams write
	rate    throttle
	file    *os.File // nil: not open
	size    int64
	out     []byte // lines to write
	lines   int    // how many
	dropped int    // could not be written
}

// NewWriter returns a Writer for the log at path; see [ParseURI].
func NewWriter(path string, k Keep) *Writer {
	return &Writer{path: path, keep: k.chosen(), ended: make(chan struct{})}
}

// Unthrottle lifts the limit for the little left in the pipes of an ended container.
func (w *Writer) Unthrottle() { w.end.Do(func() { close(w.ended) }) }

// Open makes the file before the first output, for those who look for it.
func (w *Writer) Open() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open()
}

// Copy keeps r's lines when they end, exceed 16 KiB, or r ends.
func (w *Writer) Copy(stream string, r io.Reader) {
	buffer := make([]byte, firstBuffer)
	held := 0
	for {
		n, err := r.Read(buffer[held:])
		var wait time.Duration
		if held, wait = w.take(stream, buffer, held+n, err != nil); err != nil {
			return
		}
		w.pause(wait)
		if held == len(buffer) {
			buffer = append(buffer, make([]byte, len(buffer))...)
		}
	}
}

// pause waits for d, unless the container has ended.
func (w *Writer) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.ended:
	}
}

// take keeps the complete lines of the buffer, at the end all of it. It returns the size of the
// rest, moved to the front and less than maxText, and the time until the next read.
func (w *Writer) take(stream string, buffer []byte, held int, end bool) (rest int, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := buffer[:held]
	for len(text) > 0 {
		size := bytes.IndexByte(text, '\n') + 1
		switch {
		case size > 0:
		case len(text) >= maxText:
			size = wholeRunes(text[:maxText])
		case end:
			size = len(text)
		}
		if size == 0 {
			break
		}
		w.add(stream, text[:size])
		text = text[size:]
	}
	w.flush()
	return copy(buffer, text), w.rate.spend(0, time.Now())
}

// wholeRunes returns how much of text can be taken without splitting a character.
func wholeRunes(text []byte) int {
	for back := 1; back < utf8.UTFMax && back < len(text); back++ {
		if start := len(text) - back; utf8.RuneStart(text[start]) {
			if !utf8.FullRune(text[start:]) {
				return start
			}
			break
		}
	}
	return len(text)
}

func (w *Writer) add(stream string, text []byte) {
	if len(w.out) >= enoughOut {
		w.flush()
	}
	w.out = appendEntry(w.out, stream, text, time.Now())
	w.lines++
}

func (w *Writer) flush() {
	if w.lines == 0 {
		return
	}
	if w.dropped > 0 {
		notice := fmt.Appendf(nil, "margolite: %d lines of output are lost\n", w.dropped)
		w.out = append(appendEntry(nil, Stderr, notice, time.Now()), w.out...)
	}
	w.rate.spend(len(w.out), time.Now()) // failed writes cost time too
	if w.write() == nil {
		w.dropped = 0
	} else {
		w.dropped += w.lines
	}
	w.out, w.lines = w.out[:0], 0
	if cap(w.out) > maxKeptOut {
		w.out = nil
	}
}

// write has the largest logs give way on a full file system, not those of others.
func (w *Writer) write() error {
	err := w.append()
	for try := 0; try < maxRoomMade && errors.Is(err, unix.ENOSPC) && w.makeRoom(); try++ {
		err = w.append()
	}
	return err
}

func (w *Writer) append() error {
	if err := w.open(); err != nil {
		return err
	}
	if w.size > 0 && w.size+int64(len(w.out)) > w.keep.MaxSize {
		if err := w.rotate(); err != nil {
			return err
		}
	}
	n, err := w.file.Write(w.out)
	if err == nil {
		w.size += int64(n)
		return nil
	}
	// Half a line is worse than none.
	return errors.Join(err, w.file.Truncate(w.size), w.Close())
}

// open opens the file to append at the start of a line.
func (w *Writer) open() error {
	if w.file != nil {
		return nil
	}
	f, err := os.OpenFile(w.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, Mode)
	if err != nil {
		return err
	}
	size, err := endLine(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	w.file, w.size = f, size
	return nil
}

// endLine ends a line that a killed shim left incomplete, and returns the size of the file.
func endLine(f *os.File) (int64, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || size == 0 {
		return 0, err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, size-1); err != nil {
		return 0, err
	}
	if last[0] == '\n' {
		return size, nil
	}
	_, err = f.WriteString("\n")
	return size + 1, err
}

// rotate never rewrites a file: readers identify files by inode.
func (w *Writer) rotate() error {
	if err := w.Close(); err != nil {
		return err
	}
	if w.keep.MaxFile == 1 { // the new file replaces the old one
		next := w.path + partialSuffix
		f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, Mode)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Close(), os.Rename(next, w.path)); err != nil {
			return err
		}
		return w.open()
	}
	for n := w.keep.MaxFile - 1; n > 0; n-- {
		err := os.Rename(numbered(w.path, n-1), numbered(w.path, n))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return w.open()
}

// makeRoom removes the oldest file of the largest log, whichever container's it is. It leaves
// current files to their writers, except that w rotates its own. False: nothing to gain.
func (w *Writer) makeRoom() bool {
	dir := filepath.Dir(w.path)
	entries, _ := os.ReadDir(dir)
	sizes, oldest := make(map[string]int64), make(map[string]string) // by log
	for _, entry := range entries {
		id, _, ok := strings.Cut(entry.Name(), suffix)
		info, err := entry.Info()
		if !ok || err != nil { // it has just gone
			continue
		}
		log, file := Path(dir, id), filepath.Join(dir, entry.Name())
		sizes[log] += info.Size()
		if was := oldest[log]; len(file) > len(was) || len(file) == len(was) && file > was { // .10 is older than .9
			oldest[log] = file
		}
	}
	largest := ""
	for log, size := range sizes {
		if (oldest[log] != log || log == w.path) && size >= max(minSize, sizes[largest]) {
			largest = log
		}
	}
	switch oldest[largest] {
	case "":
		return false
	case w.path:
		return w.rotate() == nil
	}
	return removeAll(oldest[largest]) == nil
}

// Close closes the file; later output opens it again.
func (w *Writer) Close() error {
	if w.file == nil {
		return nil
	}
	err := w.file.Close()
	w.file, w.size = nil, 0
	return err
}
