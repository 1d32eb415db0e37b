package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// maxRequestBytes bounds the body of a request.
const maxRequestBytes = 1 << 20

// access is who may call a route, beyond being let in by the socket's mode.
type access int

const (
	anyone   access = iota // who may open the socket
	rootOnly               // root, or the user that the agent runs as
)

// Server answers on the control socket.
type Server struct {
	backend  Backend
	logger   *slog.Logger
	http     *http.Server
	commands sync.WaitGroup // those that run on connections of their own
}

// NewServer makes a server for backend; Run serves it.
func NewServer(backend Backend, logger *slog.Logger) *Server {
	s := &Server{backend: backend, logger: logger}
	mux := http.NewServeMux()
	for _, r := range []struct {
		pattern string
		access  access
		handle  func(http.ResponseWriter, *http.Request) error
	}{
		{"GET /v1/status", anyone, s.status},
		{"GET /v1/capabilities", anyone, s.capabilities},
		{"GET /v1/events", anyone, s.events},
		{"GET /v1/logs", anyone, s.logs},
		{"POST /v1/sync", anyone, s.sync},
		{"POST /v1/accept-rollback", rootOnly, s.acceptRollback},
		{"GET /v1/compose/ps", anyone, s.composePs},
		{"GET /v1/compose/logs", anyone, s.composeLogs},
		{"POST /v1/compose/up", rootOnly, s.compose(backend.ComposeUp)},
		{"POST /v1/compose/pull", rootOnly, s.compose(backend.ComposePull)},
		{"POST /v1/compose/down", rootOnly, s.composeDown},
		{"POST /v1/exec", rootOnly, s.exec(func(r ExecRequest) string { return r.Deployment }, backend.Exec)},
		{"POST /v1/compose/exec", rootOnly, s.exec(func(r ExecRequest) string { return r.Project }, backend.ComposeExec)},
		{"GET /v1/prune", anyone, s.unneeded},
		{"POST /v1/prune", rootOnly, s.prune},
	} {
		mux.Handle(r.pattern, s.route(r.access, r.handle))
	}
	s.http = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ConnContext:       withPeer,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	return s
}

// Listen opens the control socket at path with mode 0660. A socket that a dead
// agent left behind is replaced; the caller has made sure, by the lock on the
// store, that no other agent lives.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("cannot create the directory of control socket %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot replace control socket %s: %w", path, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on control socket %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot set the mode of control socket %s: %w", path, err), l.Close())
	}
	return l, nil
}

// Run serves l until ctx is done, and returns when every request has ended.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	s.http.BaseContext = func(net.Listener) context.Context { return ctx }
	defer s.commands.Wait()
	var wg sync.WaitGroup
	defer wg.Wait()
	stopped := make(chan struct{})
	defer close(stopped)
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-stopped:
		}
		// Requests see ctx end; what does not heed it within the grace is cut.
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if s.http.Shutdown(grace) != nil {
			s.http.Close()
		}
	})
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve the control socket: %w", err)
	}
	return nil
}

// failure is the body of every answer that is not a success.
type failure struct {
	Error string `json:"error"`
}

// route checks who calls, runs handle, and turns its error into an answer.
func (s *Server) route(need access, handle func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p, ok := peerOf(r.Context()); need == rootOnly && !(ok && p.privileged()) {
			writeJSON(w, http.StatusForbidden, failure{"only root may do this"})
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxRequestBytes)
		err := handle(w, r)
		switch {
		case err == nil, r.Context().Err() != nil:
		case errors.Is(err, ErrNotFound):
			writeJSON(w, http.StatusNotFound, failure{err.Error()})
		case errors.Is(err, ErrInvalid):
			writeJSON(w, http.StatusBadRequest, failure{err.Error()})
		case errors.Is(err, ErrConflict):
			writeJSON(w, http.StatusConflict, failure{err.Error()})
		default:
			writeJSON(w, http.StatusInternalServerError, failure{err.Error()})
		}
	})
}

func (s *Server) status(w http.ResponseWriter, r *http.Request) error {
	st, err := s.backend.Status(r.Context())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, st)
	return nil
}

func (s *Server) capabilities(w http.ResponseWriter, r *http.Request) error {
	doc, err := s.backend.Capabilities(r.Context())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, doc)
	return nil
}

func (s *Server) sync(w http.ResponseWriter, r *http.Request) error {
	if err := s.backend.Sync(r.Context()); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) acceptRollback(w http.ResponseWriter, r *http.Request) error {
	var req RollbackRequest
	if err := decode(r, &req); err != nil {
		return err
	}
	if req.Version == 0 || req.Digest == "" {
		return fmt.Errorf("%w: name the version and the digest of the manifest", ErrInvalid)
	}
	p, _ := peerOf(r.Context())
	req.UID = p.uid
	if err := s.backend.AcceptRollback(r.Context(), req); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	events, cancel := s.backend.Subscribe()
	defer cancel()
	stream := newEventStream(w)
	for {
		select {
		case e, open := <-events:
			if !open {
				return nil
			}
			if err := stream.send(e); err != nil {
				return nil // the caller went away
			}
		case <-r.Context().Done():
			return nil
		}
	}
}

func (s *Server) logs(w http.ResponseWriter, r *http.Request) error {
	req, err := logsRequest(r)
	if err != nil {
		return err
	}
	req.Warn = func(text string) { w.Header().Add(warningHeader, text) }
	return s.backend.Logs(r.Context(), req, newFlushWriter(w))
}

func (s *Server) composeLogs(w http.ResponseWriter, r *http.Request) error {
	req, err := logsRequest(r)
	if err != nil {
		return err
	}
	req.Warn = func(text string) { w.Header().Add(warningHeader, text) }
	return s.backend.ComposeLogs(r.Context(), req, newFlushWriter(w))
}

func (s *Server) composePs(w http.ResponseWriter, r *http.Request) error {
	services, err := s.backend.ComposePs(r.Context(), r.URL.Query().Get("project"))
	if err != nil {
		return err
	}
	if services == nil {
		services = []Service{}
	}
	writeJSON(w, http.StatusOK, services)
	return nil
}

// compose makes a route of what streams events and closes with one of kind Done
// that carries the error, if any: the answer's status was sent long before.
func (s *Server) compose(do func(context.Context, ComposeRequest, func(Event)) error) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		var req ComposeRequest
		if err := decode(r, &req); err != nil {
			return err
		}
		if err := req.check(); err != nil {
			return err
		}
		stream := newEventStream(w)
		last := Event{Kind: Done}
		if err := do(r.Context(), req, func(e Event) { _ = stream.send(e) }); err != nil {
			last.Error = &Error{Code: "COMPOSE", Source: req.Project, Message: err.Error()}
		}
		last.Time = time.Now()
		_ = stream.send(last) // a caller that went away needs no answer
		return nil
	}
}

func (s *Server) composeDown(w http.ResponseWriter, r *http.Request) error {
	var req DownRequest
	if err := decode(r, &req); err != nil {
		return err
	}
	if err := req.check(); err != nil {
		return err
	}
	if err := s.backend.ComposeDown(r.Context(), req); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) unneeded(w http.ResponseWriter, r *http.Request) error {
	items, err := s.backend.Unneeded(r.Context())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, append([]Unneeded{}, items...))
	return nil
}

func (s *Server) prune(w http.ResponseWriter, r *http.Request) error {
	var req []Unneeded
	if err := decode(r, &req); err != nil {
		return err
	}
	removed, err := s.backend.Prune(r.Context(), req)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, append([]Unneeded{}, removed...))
	return nil
}

// writeJSON answers with one document. An error means that the caller is gone,
// which needs no handling.
func writeJSON(w http.ResponseWriter, code int, doc any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(doc)
}

// eventStream writes events as lines of JSON, each at once.
type eventStream struct {
	mu sync.Mutex
	w  io.Writer
}

func newEventStream(w http.ResponseWriter) *eventStream {
	w.Header().Set("Content-Type", "application/x-ndjson")
	f := newFlushWriter(w)
	_, _ = f.Write(nil) // the caller learns that the stream is open
	return &eventStream{w: f}
}

func (s *eventStream) send(e Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return json.NewEncoder(s.w).Encode(e)
}

// flushWriter sends what is written without waiting for more.
type flushWriter struct {
	w http.ResponseWriter
	c *http.ResponseController
}

func newFlushWriter(w http.ResponseWriter) *flushWriter {
	return &flushWriter{w: w, c: http.NewResponseController(w)}
}

func (f *flushWriter) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = f.c.Flush()
	}
	return n, err
}
