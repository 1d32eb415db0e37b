package log

import (
	"bytes"
	"errors"
	"io/fs"
)

// Source is one log to be read.
type Source struct {
	Name string // for whoever reads: web-1
	Path string // as from [Path]
}

// source is a log that is being read, line by line.
type source struct {
	Source
	file  *chain // nil: it is not there, or not yet
	text  []byte // read, from at on not yet delivered
	at    int
	head  Entry // the next to be delivered, if has
	has   bool
	dry   bool // nothing more is there for now
	gone  bool // the log was removed: what is there is all
	again bool // it was added once more

	held map[string]Entry // parts of lines under way, by stream
}

func (s *source) open(tail int) (err error) {
	if s.file, err = openChain(s.Path, tail); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (s *source) close() {
	if s.file != nil {
		s.file.close()
		s.file = nil
	}
}

// fill makes the next entry the head, or finds that there is none for now.
// Lines are put together up to the longest.
func (s *source) fill(o Options, longest int) error {
	for !s.has && !s.dry && s.file != nil {
		line, err := s.line()
		if err != nil {
			return err
		}
		if line == nil {
			s.dry = true
			return nil
		}
		if e, whole := s.join(parseEntry(line), longest); whole {
			s.setHead(e, o)
		}
	}
	return nil
}

// join puts an entry behind the parts of its line that came before, and says whether it
// is all of the line, or as much as may be held.
func (s *source) join(e Entry, longest int) (_ Entry, whole bool) {
	before, part := s.held[e.Stream].Text, isPart(e)
	if before == nil && !part {
		return e, true
	}
	e.Text = append(before, e.Text...)
	if part && len(e.Text) < longest {
		if s.held == nil {
			s.held = make(map[string]Entry)
		}
		s.held[e.Stream] = e
		return e, false
	}
	delete(s.held, e.Stream)
	if part {
		e.Text = append(e.Text, unfinished...)
	}
	return e, true
}

// finish makes head what is left of a line that never ended, and says whether there was one.
func (s *source) finish(o Options) bool {
	for stream, e := range s.held {
		if s.has {
			break
		}
		delete(s.held, stream)
		s.setHead(e, o)
	}
	return s.has
}

func (s *source) setHead(e Entry, o Options) {
	s.head = e
	s.head.Source = s.Name
	s.has = o.wants(s.head)
}

// line returns the next line with its end; nil if there is none for now. A line
// that is too long comes in parts.
func (s *source) line() ([]byte, error) {
	searched := 0
	for {
		rest := s.text[s.at:]
		end := bytes.IndexByte(rest[searched:], '\n') + 1
		if end > 0 {
			end += searched
		}
		if end == 0 && len(rest) >= maxLine || end > maxLine {
			end = maxLine
		}
		if end > 0 {
			s.at += end
			return rest[:end], nil
		}
		searched = len(rest)
		block, err := s.file.next()
		if err != nil || len(block) == 0 {
			return nil, err
		}
		s.text = append(s.text[:copy(s.text, rest)], block...)
		s.at = 0
	}
}

// wants tells whether an entry is asked for. Where its time is not known, it is.
func (o Options) wants(e Entry) bool {
	return e.Time.IsZero() || !e.Time.Before(o.Since) && (o.Until.IsZero() || !e.Time.After(o.Until))
}
