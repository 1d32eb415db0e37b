// Package record keeps the memory of an HTTP server: which requests arrived, in
// which order, and what became of them.
//
// A request is recorded when it arrives and completed when its handler is done,
// so that a test can wait for a download to begin as well as for it to end. The
// log keeps the newest requests only; its counts are never forgotten.
package record

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Request is one request and its answer.
type Request struct {
	Number   int64             `json:"number"` // 1, 2, 3 ... over all endpoints
	Time     time.Time         `json:"time"`
	Endpoint string            `json:"endpoint"`
	Client   string            `json:"client,omitempty"`
	From     string            `json:"from"` // address and port: one for each connection
	Method   string            `json:"method"`
	Path     string            `json:"path"`
	Header   map[string]string `json:"header,omitempty"` // those of interest
	Status   int               `json:"status"`           // 0: not answered (yet)
	Sent     int64             `json:"sent"`             // bytes of the body
	Done     bool              `json:"done"`
}

// Options say what a log keeps.
type Options struct {
	Header []string                     // names of the headers worth keeping
	Client func(r *http.Request) string // who asks; nil: nobody in particular
}

// Log is the memory. Its methods may be called from any goroutine.
type Log struct {
	options Options

	mu      sync.Mutex
	last    int64
	newest  []*Request
	counts  map[string]int
	changed chan struct{} // closed and replaced at every change
}

// kept is how many requests a log remembers.
const kept = 10_000

// New makes an empty log.
func New(o Options) *Log {
	return &Log{options: o, counts: map[string]int{}, changed: make(chan struct{})}
}

// Requests gives what is remembered, oldest first.
func (l *Log) Requests() []Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.copy()
}

// Count says how many requests an endpoint has had; an empty endpoint: all.
func (l *Log) Count(endpoint string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if endpoint == "" {
		return int(l.last)
	}
	return l.counts[endpoint]
}

// WaitCount returns when an endpoint has had at least n requests that are done.
func (l *Log) WaitCount(ctx context.Context, endpoint string, n int) error {
	for {
		l.mu.Lock()
		requests, changed := l.copy(), l.changed
		l.mu.Unlock()
		done := 0
		for _, r := range requests {
			if r.Done && (endpoint == "" || r.Endpoint == endpoint) {
				done++
			}
		}
		if done >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("cannot wait for a request: %w; the last of %d were %s",
				ctx.Err(), len(requests), tail(requests, 8))
		}
	}
}

// Wrap records what a handler is asked.
func (l *Log) Wrap(endpoint string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entry := l.arrive(endpoint, r)
		counted := &writer{ResponseWriter: w, begins: func(status int) { l.begin(entry, status) }}
		// Also where the handler cuts the connection by a panic.
		defer func() { l.complete(entry, counted) }()
		next.ServeHTTP(counted, r)
		if counted.status == 0 {
			counted.status = http.StatusOK // as net/http does
		}
	})
}

func (l *Log) arrive(endpoint string, r *http.Request) *Request {
	entry := &Request{
		Time: time.Now(), Endpoint: endpoint, From: r.RemoteAddr, Method: r.Method, Path: r.URL.Path,
		Header: map[string]string{},
	}
	for _, name := range l.options.Header {
		if values := r.Header.Values(name); len(values) > 0 {
			entry.Header[name] = values[0]
		}
	}
	if l.options.Client != nil {
		entry.Client = l.options.Client(r)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	entry.Number = l.last
	l.counts[endpoint]++
	l.newest = append(l.newest, entry)
	// Now and then, because it moves all that is kept.
	if extra := len(l.newest) - kept; extra > kept/4 {
		l.newest = slices.Delete(l.newest, 0, extra)
	}
	l.tell()
	return entry
}

// begin is called before the client can have seen anything of the answer.
func (l *Log) begin(entry *Request, status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry.Status = status
}

func (l *Log) complete(entry *Request, w *writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry.Status, entry.Sent, entry.Done = w.status, w.sent, true
	l.tell()
}

func (l *Log) tell() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Log) copy() []Request {
	newest := l.newest[max(0, len(l.newest)-kept):]
	requests := make([]Request, len(newest))
	for i, r := range newest {
		requests[i] = *r
	}
	return requests
}

func tail(requests []Request, n int) string {
	text := "["
	for _, r := range requests[max(0, len(requests)-n):] {
		text += fmt.Sprintf(" %s %s %d", r.Method, r.Path, r.Status)
	}
	return text + " ]"
}

// writer counts what is written through it.
type writer struct {
	http.ResponseWriter
	begins func(status int)
	status int
	sent   int64
}

func (w *writer) WriteHeader(status int) {
	w.begin(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) begin(status int) {
	if w.status == 0 {
		w.status = status
		w.begins(status)
	}
}

func (w *writer) Write(data []byte) (int, error) {
	w.begin(http.StatusOK)
	n, err := w.ResponseWriter.Write(data)
	w.sent += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
