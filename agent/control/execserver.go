package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// detachGrace is how long a detached command is watched for an immediate error.
	detachGrace  = 300 * time.Millisecond
	maxExecError = 4 << 10
)

// exec switches the connection to ExecProtocol. The command lives as long as the connection.
func (s *Server) exec(w http.ResponseWriter, r *http.Request) error {
	var req ExecRequest
	if err := parseBody(r, &req); err != nil {
		return err
	}
	if req.Detach {
		return s.detach(w, r, req)
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), ExecProtocol) {
		return fmt.Errorf("%w: the request must ask for an upgrade to %s", ErrInvalid, ExecProtocol)
	}
	conn, rest, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("cannot take over the connection: %w", err)
	}
	s.commands.Add(1)
	defer s.commands.Done()
	s.attached(r, conn, rest.Reader, req)
	return nil
}

// attached runs a command whose streams are frames on conn, and closes conn.
func (s *Server) attached(r *http.Request, conn net.Conn, from *bufio.Reader, req ExecRequest) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	out := &frameWriter{w: conn}
	in := newExecInput(func(n int) { _ = out.number(frameCredit, uint32(n)) })
	resize := make(chan Size, 1)

	// Cuts whatever outlives ctx, such as a write to a caller that does not read.
	unhook := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now().Add(2 * time.Second)) })
	defer unhook()
	var reading sync.WaitGroup
	defer reading.Wait()
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", ExecProtocol); err != nil {
		return
	}
	reading.Go(func() {
		defer cancel() // a command ends with its caller
		err := receive(from, in, resize)
		in.end(err)
	})

	code, err := s.execute(ctx, r, req, ExecStreams{Stdin: in, Stdout: out.stream(frameStdout), Stderr: out.stream(frameStderr), Resize: resize})
	in.end(io.ErrClosedPipe)
	if err != nil {
		text := err.Error()
		text = strings.ToValidUTF8(text[:min(len(text), maxExecError)], "")
		if code <= 0 {
			_ = out.write(frameError, []byte(text))
			return
		}
		// As with Docker, the caller sees the text and gets the code.
		kind, end := frameStderr, "\n"
		if req.TTY {
			kind, end = frameStdout, "\r\n"
		}
		_ = out.write(kind, []byte(text+end))
	}
	_ = out.number(frameExit, uint32(code))
}

func (s *Server) execute(ctx context.Context, r *http.Request, req ExecRequest, streams ExecStreams) (code int, err error) {
	err = s.contained(r, func() (err error) {
		code, err = s.backend.Exec(ctx, req, streams)
		return err
	})
	return code, err
}

// receive passes on frames until the caller is gone or breaks the protocol. It never waits for the
// command.
func receive(from io.Reader, in *execInput, resize chan Size) error {
	buf := make([]byte, maxFrame)
	for {
		kind, payload, err := readFrame(from, buf)
		if err != nil {
			return err
		}
		switch kind {
		case frameStdin:
			if len(payload) == 0 {
				in.end(io.EOF)
			} else if err := in.feed(payload); err != nil {
				return err
			}
		case frameResize:
			size := decodeSize(payload)
			select { // only the latest counts
			case <-resize:
			default:
			}
			resize <- size // the only sender
		}
	}
}

// execInput is a command's unread input, at most inputWindow bytes.
type execInput struct {
	credit func(n int) // tells the caller of consumed bytes

	mu   sync.Mutex
	fed  sync.Cond
	data []byte
	err  error // after data
}

func newExecInput(credit func(n int)) *execInput {
	i := &execInput{credit: credit}
	i.fed.L = &i.mu
	return i
}

func (i *execInput) feed(p []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.data)+len(p) > inputWindow {
		return fmt.Errorf("%w: more input than requested", errFrame)
	}
	if i.err == nil {
		i.data = append(i.data, p...)
		i.fed.Broadcast()
	}
	return nil
}

// end makes Read fail with err once everything was read.
func (i *execInput) end(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err == nil {
		i.err = err
	}
	i.fed.Broadcast()
}

func (i *execInput) Read(p []byte) (int, error) {
	n, err := i.take(p)
	if n > 0 {
		i.credit(n)
	}
	return n, err
}

func (i *execInput) take(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.data) == 0 && i.err == nil {
		i.fed.Wait()
	}
	if len(i.data) == 0 {
		return 0, i.err
	}
	n := copy(p, i.data)
	if i.data = i.data[n:]; len(i.data) == 0 {
		i.data = nil
	}
	return n, nil
}

// detach runs a command until it or the server ends, and answers an immediate error.
func (s *Server) detach(w http.ResponseWriter, r *http.Request, req ExecRequest) error {
	// The command outlives the request and ends with the server.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	ended := make(chan error, 1)
	s.commands.Go(func() {
		defer cancel()
		defer context.AfterFunc(s.http.BaseContext(nil), cancel)()
		code, err := s.execute(ctx, r, req, ExecStreams{})
		ended <- err
		if err != nil {
			s.logger.Warn("a detached command failed", "service", req.Service, "error", err)
			return
		}
		s.logger.Debug("a detached command ended", "service", req.Service, "code", code)
	})
	select {
	case err := <-ended:
		return done(w, err)
	case <-time.After(detachGrace):
		return done(w, nil)
	}
}

// parseBody decodes a request's JSON document, and rejects one that can never succeed.
func parseBody(r *http.Request, into any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: the body is empty; send a JSON document", ErrInvalid)
	} else if err != nil {
		return fmt.Errorf("%w: %v", ErrInvalid, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: more than one document", ErrInvalid)
	}
	if checked, ok := into.(interface{ check() error }); ok {
		return checked.check()
	}
	return nil
}
