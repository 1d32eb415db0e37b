package control

import (
	"bytes"
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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// maxRequestBytes bounds the body of root's requests, which may hold a command's arguments or
	// an environment; maxAnyonesBytes that of others.
	maxRequestBytes = 1 << 20
	maxAnyonesBytes = 16 << 10
	// maxTransfer bounds sending a body and receiving an answer; maxLag, receiving an event.
	maxTransfer = 10 * time.Second
	maxLag      = 30 * time.Second
)

// errPanic reports that a request hit a bug in this program.
var errPanic = errors.New("internal error; see the agent's log")

// access is who may call a route, beyond the socket's mode.
type access int

const (
	anyone   access = iota // every caller that can open the socket
	somebody               // the same, if the kernel identifies it: its name is recorded
	rootOnly               // root, and the user that the agent runs as
)

type handler = func(http.ResponseWriter, *http.Request) error

// Server answers on the control socket.
type Server struct {
	backend     Backend
	logger      *slog.Logger
	http        *http.Server
	routes      *http.ServeMux
	streams     *quota // of events
	lasting     *quota // long-running requests, streams among them
	connections *quota
	refusing    chan struct{}  // a slot for each connection that is being refused
	commands    sync.WaitGroup // running on connections of their own
}

// NewServer returns a server for backend; Run serves it.
func NewServer(backend Backend, logger *slog.Logger) *Server {
	s := &Server{
		backend: backend, logger: logger, routes: http.NewServeMux(),
		streams:     newQuota("event streams", maxOwnStreams, maxOthersStreams, maxStreams),
		lasting:     newQuota("long-running requests", maxOwnLasting, maxOthersLasting, maxLasting),
		connections: newQuota("connections", maxOwnConnections, maxOthersConnections, maxConnections),
		refusing:    make(chan struct{}, maxRefusing),
	}
	for _, r := range []struct {
		pattern string
		access  access
		handle  handler
	}{
		{"GET /v1/status", anyone, replies(bare(backend.Status))},
		{"GET /v1/capabilities", anyone, replies(bare(backend.Capabilities))},
		{"GET /v1/events", anyone, s.lasting.bounds(s.streams.bounds(s.events))},
		{"GET /events", anyone, s.lasting.bounds(s.streams.bounds(s.events))}, // the same, for clients without API versions
		{"GET /v1/logs", anyone, s.lasting.bounds(s.logs)},
		{"GET /metrics", anyone, s.metrics},
		{"POST /v1/sync", anyone, s.lasting.bounds(func(w http.ResponseWriter, r *http.Request) error { return done(w, backend.Sync(r.Context())) })},
		{"POST /v1/approve", somebody, acts(backend.Approve)},
		{"POST /v1/reject", somebody, acts(backend.Reject)},
		{"POST /v1/hold", somebody, replies(with(bodyOf, backend.Hold))},
		{"POST /v1/release", somebody, lists(with(bodyOf, backend.Release))},
		{"POST /v1/rollback", somebody, acts(backend.Rollback)},
		{"GET /v1/history", anyone, lists(with(historyRequest, backend.History))},
		{"GET /v1/history/verify", anyone, s.lasting.bounds(replies(bare(backend.VerifyHistory)))},
		{"GET /v1/backup", rootOnly, s.lasting.bounds(s.backup)},
		{"POST /v1/accept-rollback", rootOnly, s.lasting.bounds(acts(backend.AcceptRollback))},
		{"GET /v1/compose/ps", anyone, lists(with(projectOf, backend.ComposePs))},
		{"GET /v1/compose/logs", anyone, s.lasting.bounds(s.logs)},
		{"POST /v1/compose/up", rootOnly, s.lasting.bounds(s.compose(backend.ComposeUp))},
		{"POST /v1/compose/pull", rootOnly, s.lasting.bounds(s.compose(backend.ComposePull))},
		{"POST /v1/compose/down", rootOnly, s.lasting.bounds(acts(backend.ComposeDown))},
		{"POST /v1/exec", rootOnly, s.lasting.bounds(s.exec)},
		{"POST /v1/compose/exec", rootOnly, s.lasting.bounds(s.exec)},
		{"GET /v1/prune", anyone, s.lasting.bounds(lists(bare(backend.Unneeded)))},
		{"POST /v1/prune", rootOnly, s.lasting.bounds(lists(with(bodyOf, backend.Prune)))},
	} {
		s.routes.Handle(r.pattern, s.route(r.access, r.handle))
	}
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	return s
}

// Listen opens the control socket at path with mode 0660. It replaces the socket of a dead agent:
// the caller has ensured, by the lock on the store, that no other agent runs.
func Listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot replace control socket %s: %w", path, err)
	}
	return listen(path, nil)
}

// listen opens the control socket at an unused path, with the group of former, if not nil.
func listen(path string, former os.FileInfo) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, fmt.Errorf("cannot create the directory of control socket %s: %w", path, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on control socket %s: %w", path, err)
	}
	gid := -1
	if former != nil {
		gid = int(former.Sys().(*syscall.Stat_t).Gid)
	}
	if err := errors.Join(os.Chmod(path, 0o660), os.Chown(path, -1, gid)); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot set the mode of control socket %s: %w", path, err), l.Close())
	}
	return l, nil
}

// Run serves l until ctx is done, and returns when every request has ended. At each of ticks it
// checks whether the socket's file was deleted, and then listens again; another program's file is
// left alone.
func (s *Server) Run(ctx context.Context, l net.Listener, ticks <-chan time.Time) error {
	s.http.BaseContext = func(net.Listener) context.Context { return ctx }
	defer s.commands.Wait()
	var wg sync.WaitGroup
	defer wg.Wait()
	failed := make(chan error, 1)
	serve := func(l net.Listener) {
		wg.Go(func() {
			if err := s.http.Serve(&limitedListener{l, s}); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
				failed <- fmt.Errorf("cannot serve the control socket: %w", err)
			}
		})
	}
	defer s.stop(context.WithoutCancel(ctx))
	serve(l)
	path, logged := l.Addr().String(), ""
	file, _ := os.Lstat(path)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-ticks:
		}
		now, err := os.Lstat(path)
		if os.SameFile(now, file) {
			file = now // its group may differ
		}
		if !errors.Is(err, os.ErrNotExist) {
			continue
		}
		l.Close() // its connections stay
		again, err := listen(path, file)
		if err == nil {
			l, logged = again, ""
			file, _ = os.Lstat(path)
			serve(l)
			s.logger.Warn("the control socket was deleted, and is open again", "path", path)
		} else if logged != err.Error() {
			logged = err.Error()
			s.logger.Error("commands cannot reach the agent", "error", err)
		}
	}
}

// stop ends all requests, whose context is done, and cuts off what outlives the grace period.
func (s *Server) stop(ctx context.Context) {
	grace, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if s.http.Shutdown(grace) != nil {
		s.http.Close()
	}
}

type failure struct {
	Error string `json:"error"`
}

// serve routes a request. It bounds the time a caller takes to send and to read, except for
// streams, which bound it themselves.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(w)
	if r.ContentLength != 0 {
		_ = c.SetReadDeadline(time.Now().Add(maxTransfer))
	}
	limitWrite(c, maxTransfer)
	if why := connOf(r.Context()).refused; why != nil {
		w.Header().Set("Connection", "close")
		writeJSON(w, codeOf(why), failure{why.Error()})
		return
	}
	if _, pattern := s.routes.Handler(r); pattern == "" {
		if readBody(w, r, maxAnyonesBytes) {
			s.noRoute(w, r)
		}
		return
	}
	s.routes.ServeHTTP(w, r)
	limitWrite(c, maxTransfer) // the rest of the answer is written now
}

// limitWrite sets how long the caller may take to receive what is written from now on. An error
// means that the connection is gone.
func limitWrite(c *http.ResponseController, most time.Duration) {
	_ = c.SetWriteDeadline(time.Now().Add(most))
}

func (s *Server) noRoute(w http.ResponseWriter, r *http.Request) {
	var methods []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
		other := http.Request{Method: method, Host: r.Host, URL: r.URL}
		if _, pattern := s.routes.Handler(&other); pattern != "" {
			methods = append(methods, method)
		}
	}
	if len(methods) == 0 {
		writeJSON(w, http.StatusNotFound, failure{fmt.Sprintf("there is no %.80s", r.URL.EscapedPath())})
		return
	}
	takes := strings.Join(methods, ", ")
	w.Header().Set("Allow", takes)
	writeJSON(w, http.StatusMethodNotAllowed, failure{fmt.Sprintf("%.80s takes %s, not %.20s", r.URL.EscapedPath(), takes, r.Method)})
}

func allowed(need access, p Caller, known bool) string {
	switch {
	case need == rootOnly && !(known && p.Privileged()):
		return "only root can do this"
	case need == somebody && !known:
		return "cannot identify the caller"
	}
	return ""
}

func (s *Server) route(need access, handle handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := connOf(r.Context())
		no, most := allowed(need, c.peer, c.known), int64(maxAnyonesBytes)
		if need == rootOnly && no == "" {
			most = maxRequestBytes
		}
		if !readBody(w, r, most) {
			return
		}
		if no != "" {
			writeJSON(w, http.StatusForbidden, failure{no})
			return
		}
		err := s.contained(r, func() error { return handle(w, r) })
		if err != nil && r.Context().Err() == nil {
			writeJSON(w, codeOf(err), failure{err.Error()})
		}
	})
}

// contained runs do for a caller. A panic becomes an error for that caller only.
func (s *Server) contained(r *http.Request, do func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			s.backend.Panicked("request "+r.Pattern, v)
			err = errPanic
		}
	}()
	return do()
}

// readBody reads a body into memory, so that a handler never waits for it, or answers with an
// error. In that case the deadline of serve stays: the rest is not waited for.
func readBody(w http.ResponseWriter, r *http.Request, most int64) bool {
	if r.ContentLength == 0 {
		return true
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var long *http.MaxBytesError
	switch {
	case err == nil:
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		r.Body = io.NopCloser(bytes.NewReader(body))
		return true
	case errors.As(err, &long):
		writeJSON(w, http.StatusRequestEntityTooLarge, failure{fmt.Sprintf("the body is longer than %d bytes", most)})
	case errors.Is(err, os.ErrDeadlineExceeded):
		writeJSON(w, http.StatusRequestTimeout, failure{fmt.Sprintf("the body did not arrive within %v", maxTransfer)})
	default:
		writeJSON(w, http.StatusBadRequest, failure{fmt.Sprintf("cannot read the body: %v", err)})
	}
	return false
}

func replies[A any](get func(*http.Request) (A, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		document, err := get(r)
		if err == nil {
			writeJSON(w, http.StatusOK, document)
		}
		return err
	}
}

// lists makes a route that replies with a list, which is never null.
func lists[A any](get func(*http.Request) ([]A, error)) handler {
	return replies(func(r *http.Request) ([]A, error) {
		items, err := get(r)
		return append([]A{}, items...), err
	})
}

// bare adapts a call of the Backend that takes nothing from the request.
func bare[A any](call func(context.Context) (A, error)) func(*http.Request) (A, error) {
	return func(r *http.Request) (A, error) { return call(r.Context()) }
}

// with adapts a call of the Backend that takes what read finds in the request.
func with[Q, A any](read func(*http.Request) (Q, error), call func(context.Context, Q) (A, error)) func(*http.Request) (A, error) {
	return func(r *http.Request) (reply A, err error) {
		req, err := read(r)
		if err != nil {
			return reply, err
		}
		return call(r.Context(), req)
	}
}

// acts makes a route of a call of the Backend that takes the request's body and has no reply.
func acts[Q any](call func(context.Context, Q) error) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		req, err := bodyOf[Q](r)
		if err != nil {
			return err
		}
		return done(w, call(r.Context(), req))
	}
}

func done(w http.ResponseWriter, err error) error {
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// bodyOf returns the body of a request, with the caller if the Backend wants it.
func bodyOf[Q any](r *http.Request) (req Q, err error) {
	err = parseBody(r, &req)
	if by, ok := any(&req).(interface{ by(Caller) }); ok && err == nil {
		by.by(callerOf(r))
	}
	return req, err
}

// MetricsType is the media type of metrics.
const MetricsType = "text/plain; version=0.0.4; charset=utf-8"

func (s *Server) metrics(w http.ResponseWriter, r *http.Request) error {
	text, err := s.backend.Metrics(r.Context())
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", MetricsType)
	_, _ = w.Write(text) // a caller that is gone needs no answer
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
			if err := stream.Encode(e); err != nil {
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
	return s.backend.Logs(r.Context(), req, newFlushWriter(w, 0))
}

func (s *Server) backup(w http.ResponseWriter, r *http.Request) error {
	database, err := s.backend.Backup(r.Context())
	if err != nil {
		return err
	}
	defer database.Close()
	info, err := database.Stat()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	_, _ = io.Copy(newFlushWriter(w, maxLag), database) // the caller notices a short copy
	return nil
}

// compose makes a route that streams events and ends with one of kind Done, which carries the
// error, if any: the answer's status was sent long before.
func (s *Server) compose(do func(context.Context, ComposeRequest, func(Event)) error) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		var req ComposeRequest
		if err := parseBody(r, &req); err != nil {
			return err
		}
		stream := newEventStream(w) // a stalled client must not block the operation, which holds locks
		last := Event{Kind: Done}
		if err := do(r.Context(), req, func(e Event) { _ = stream.Encode(e) }); err != nil {
			last.Error = &Error{Code: "COMPOSE", Source: req.Project, Message: err.Error()}
		}
		last.Time = time.Now()
		_ = stream.Encode(last) // a caller that went away needs no answer
		return nil
	}
}

// writeJSON answers with one document. An error means that the caller is gone.
func writeJSON(w http.ResponseWriter, code int, doc any) {
	limitWrite(http.NewResponseController(w), maxTransfer)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(doc)
}

// newEventStream returns an encoder of events as lines of JSON, each sent at once.
func newEventStream(w http.ResponseWriter) *json.Encoder {
	w.Header().Set("Content-Type", "application/x-ndjson")
	f := newFlushWriter(w, maxLag)
	_, _ = f.Write(nil) // the caller learns that the stream is open
	return json.NewEncoder(f)
}

// flushWriter sends each write at once.
type flushWriter struct {
	w   http.ResponseWriter
	c   *http.ResponseController
	lag time.Duration
}

// newFlushWriter returns a writer whose reader may lag by lag; 0: no limit, for paging by a person.
func newFlushWriter(w http.ResponseWriter, lag time.Duration) *flushWriter {
	f := &flushWriter{w: w, c: http.NewResponseController(w), lag: lag}
	if lag == 0 {
		_ = f.c.SetWriteDeadline(time.Time{})
	}
	return f
}

func (f *flushWriter) Write(p []byte) (int, error) {
	if f.lag != 0 {
		limitWrite(f.c, f.lag)
	}
	n, err := f.w.Write(p)
	if err == nil {
		err = f.c.Flush()
	}
	return n, err
}
