package log

import (
	"bytes"
	"errors"
	"io/fs"
)

// Source is a log to read.
type Source struct {
	Name string // for display: web-1
	Path string // as from [Path]
}

type source struct {
	Source
	file  *chain // nil: the log does not exist, or not yet
	text  []byte // read; from at on not delivered
	at    int
	head  Entry // the next entry to deliver, if has
	has   bool
	dry   bool // no more for now
	gone  bool // the log was removed: nothing will follow
	again bool // it was added again

	held map[string]Entry // incomplete lines, by stream
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

// fill makes the next entry the head, if there is one, joining lines up to the longest.
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

// join adds an entry to its line, and reports whether that is complete or long enough.
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

// finish makes the rest of an unfinished line the head, and reports whether there was one.
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

// line returns a line with its newline, in parts if too long; nil: none for now.
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

// wants reports whether an entry is selected; one without a time always is.
func (o Options) wants(e Entry) bool {
	return e.Time.IsZero() || !e.Time.Before(o.Since) && (o.Until.IsZero() || !e.Time.After(o.Until))
}
