package external

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// stream is a call under way, for one goroutine to read from.
type stream struct {
	method   method
	ctx      context.Context
	cancel   context.CancelFunc
	answered chan struct{} // closed when there is an answer or an error
	answer   *http.Response
	err      error
	items    int // how many more elements its messages may have
}

// receive reads the next message. io.EOF says that there are no more and the call has succeeded.
func (s *stream) receive(out message) error {
	in, err := s.next()
	if err != nil {
		return err
	}
	if s.items, err = decode(in, out, s.items); err != nil {
		s.err = fmt.Errorf("%s: %w", s.method, err)
	}
	return s.err
}

// end is the status of a call of which nothing more is expected.
func (s *stream) end() error {
	switch _, err := s.next(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%s: %w: there is more than one answer", s.method, errFrame)
}

// next is the next message. After an error there is nothing but that error.
func (s *stream) next() ([]byte, error) {
	<-s.answered
	if s.err != nil {
		return nil, s.err
	}
	var message []byte
	if s.err = checkAnswer(s.answer); s.err == nil {
		message, s.err = readFrame(s.answer.Body)
		if errors.Is(s.err, io.EOF) {
			s.err = statusOf(s.answer)
		} else if s.err != nil && !errors.Is(s.err, errFrame) {
			s.err = broken(s.ctx, s.err)
		}
	}
	if s.err != nil && !errors.Is(s.err, io.EOF) {
		s.err = fmt.Errorf("%s: %w", s.method, s.err)
	}
	return message, s.err
}

// close gives up what has not come yet.
func (s *stream) close() {
	s.cancel()
	<-s.answered
	if s.answer != nil {
		s.answer.Body.Close()
	}
}
