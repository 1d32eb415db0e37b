// Package serving starts and stops one HTTP server, as often as asked and on the
// same address: a server that goes away for a while and comes back. What it is asked
// is remembered (package record), and can be made to fail (package fault).
package serving

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/record"
)

// Options of a server.
type Options struct {
	Handler http.HandlerFunc
	TLS     *tls.Config // nil: plain HTTP
	Faults  fault.Options
	Record  record.Options
}

// Server is an HTTP server that can be started again after it was closed. Its methods
// may be called at any time from any goroutine.
type Server struct {
	handler  http.Handler
	tls      *tls.Config
	faults   *fault.Switches
	requests *record.Log

	mu      sync.Mutex
	http    *http.Server
	address string
	done    chan struct{} // closed when the serving goroutine has returned
}

// New makes a server; Start opens it.
func New(o Options) *Server {
	return &Server{handler: o.Handler, tls: o.TLS, faults: fault.New(o.Faults), requests: record.New(o.Record)}
}

// Faults lets requests fail.
func (s *Server) Faults() *fault.Switches { return s.faults }

// Requests is the memory of what was asked.
func (s *Server) Requests() *record.Log { return s.requests }

// Wrap puts memory and faults before the handler of an endpoint.
func (s *Server) Wrap(endpoint string, handler http.Handler) http.Handler {
	return s.requests.Wrap(endpoint, s.faults.Wrap(endpoint, handler))
}

// Answer answers with a document, as JSON that nobody may keep.
func Answer(w http.ResponseWriter, status int, mediaType string, document any) {
	body, err := json.Marshal(document)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // nobody is left to be told of an error
}

// Start listens on address, or where address is empty on the one it had before
// (the first time: any free port of the loopback interface).
func (s *Server) Start(address string) error {
	s.mu.Lock()
	previous := s.address
	s.mu.Unlock()
	switch {
	case address != "":
	case previous != "":
		address = previous
	default:
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	return s.Serve(listener)
}

// Serve answers on a listener, which it owns from then on.
func (s *Server) Serve(listener net.Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http != nil {
		return errors.Join(errors.New("cannot start: already serving"), listener.Close())
	}
	s.address = listener.Addr().String()
	if s.tls != nil {
		listener = tls.NewListener(listener, s.tls)
	}
	server := &http.Server{
		Handler:           s.handler,
		ErrorLog:          log.New(io.Discard, "", 0), // handshakes that fail are the clients' to report
		ReadHeaderTimeout: 10 * time.Second,
		MaxHeaderBytes:    64 << 10,
		// The interfaces served here speak HTTP/1.1 and nothing else.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // returns when Close is called, and says so
	}()
	s.http, s.done = server, done
	return nil
}

// Close ends every connection and returns when nothing is served any more.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http == nil {
		return nil
	}
	err := s.http.Close()
	<-s.done
	s.http = nil
	return err
}

// Address is host:port of the present listener, or of the last one.
func (s *Server) Address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address
}
