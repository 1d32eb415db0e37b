package log

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// maxLine is where Prefix breaks a line that does not end.
const maxLine = 16 << 10

// Prefix merges the output of several sources line by line, each line with the
// name of its source in front: "web-1 | line". Lines of different sources never
// mix; a line longer than maxLine goes on as another line.
type Prefix struct {
	width int

	mu sync.Mutex // a line is written as a whole
	w  io.Writer
}

// NewPrefix merges sources with the given names into w.
func NewPrefix(w io.Writer, names ...string) *Prefix {
	p := &Prefix{w: w}
	for _, name := range names {
		p.width = max(p.width, len(name))
	}
	return p
}

// Writer is where the source called name writes, from one goroutine. It holds
// back a last line without an end until it is closed.
func (p *Prefix) Writer(name string) io.WriteCloser {
	return &source{p: p, prefix: fmt.Appendf(nil, "%-*s | ", p.width, name)}
}

func (p *Prefix) write(line []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.w.Write(line)
	return err
}

// source is a line under way of one source, its prefix included.
type source struct {
	p      *Prefix
	prefix []byte
	line   []byte
}

func (s *source) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		if len(s.line) == 0 {
			s.line = append(s.line, s.prefix...)
		}
		rest := b[written:]
		room := maxLine + len(s.prefix) - len(s.line)
		end := bytes.IndexByte(rest, '\n')
		switch {
		case end >= 0 && end <= room:
			s.line = append(s.line, rest[:end]...)
			written += end + 1
		case len(rest) >= room:
			s.line = append(s.line, rest[:room]...)
			written += room
		default:
			s.line = append(s.line, rest...)
			return len(b), nil
		}
		if err := s.flush(); err != nil {
			return written, err
		}
	}
	return written, nil
}

// Close writes a last line that has no end.
func (s *source) Close() error {
	if len(s.line) == 0 {
		return nil
	}
	return s.flush()
}

func (s *source) flush() error {
	err := s.p.write(append(s.line, '\n'))
	s.line = s.line[:0]
	return err
}
