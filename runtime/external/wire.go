package external

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/margolite/margolite/runtime/containerd"
)

const (
	// dialTimeout is how long a socket may take to accept.
	dialTimeout = 10 * time.Second

	// window is how many bytes of a stream containerd may send ahead.
	window = 256 << 10

	// maxHeader is how many bytes of headers and trailers an answer may have: messages of errors are among them.
	maxHeader = 64 << 10

	namespaceHeader = "Containerd-Namespace"
	leaseHeader     = "Containerd-Lease"
)

// wire is the connection to one socket, which is made when it is needed.
type wire struct {
	socket    string
	namespace string // of calls whose context names none
	http      *http.Transport

	mutex  sync.Mutex
	open   map[*connection]bool
	closed bool
}

func newWire(socket, namespace string) *wire {
	w := &wire{socket: socket, namespace: namespace, open: make(map[*connection]bool)}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	w.http = &http.Transport{
		DialContext:            w.dial,
		Protocols:              protocols,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerStream: window},
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
	}
	return w
}

func (w *wire) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "unix", w.socket)
	if err != nil {
		return nil, err
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.closed {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	c := &connection{conn, w}
	w.open[c] = true
	return c, nil
}

// close ends what is open, which the transport would only do when no call needs it any more.
func (w *wire) close() {
	w.mutex.Lock()
	w.closed = true
	left := slices.Collect(maps.Keys(w.open))
	w.mutex.Unlock()
	for _, c := range left {
		c.Close()
	}
	w.http.CloseIdleConnections()
}

// connection is one of a wire until it is closed.
type connection struct {
	net.Conn
	of *wire
}

func (c *connection) Close() error {
	c.of.mutex.Lock()
	delete(c.of.open, c)
	c.of.mutex.Unlock()
	return c.Conn.Close()
}

// method is a call of a service of containerd, as "images.v1.Images/Get".
type method string

// call sends one message and reads the one that comes back.
func (w *wire) call(ctx context.Context, m method, in, out message) error {
	s, err := w.ask(ctx, m, in)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.receive(out); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%s: containerd has not answered: %w", m, errdefs.ErrUnknown)
		}
		return err
	}
	return s.end()
}

// callAll is call for an answer of any number of messages, which are read one after the other as if they were one.
func (w *wire) callAll(ctx context.Context, m method, in, out message) error {
	s, err := w.ask(ctx, m, in)
	if err != nil {
		return err
	}
	defer s.close()
	for err == nil {
		err = s.receive(out)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// ask sends one message; the answer has any number of them.
func (w *wire) ask(ctx context.Context, m method, in message) (*stream, error) {
	sent, err := frame(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m, err)
	}
	return w.start(ctx, m, bytes.NewReader(sent)), nil
}

// start begins a call with what body holds. The stream has to be closed.
func (w *wire) start(ctx context.Context, m method, body io.Reader) *stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{method: m, ctx: ctx, cancel: cancel, answered: make(chan struct{}), items: maxItems}
	go func() { // ends with ctx at the latest, which close ends
		defer close(s.answered)
		s.answer, s.err = w.roundTrip(ctx, m, body)
	}()
	return s
}

func (w *wire) roundTrip(ctx context.Context, m method, body io.Reader) (*http.Response, error) {
	to := url.URL{Scheme: "http", Host: "containerd", Path: "/containerd.services." + string(m)}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m, err)
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("Te", "trailers")
	request.Header.Set(namespaceHeader, w.namespaceOf(ctx))
	if lease := containerd.LeaseOf(ctx); lease != "" {
		request.Header.Set(leaseHeader, lease)
	}
	if deadline, ok := ctx.Deadline(); ok {
		request.Header.Set("Grpc-Timeout", timeout(time.Until(deadline)))
	}
	answer, err := w.http.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m, broken(ctx, err))
	}
	return answer, nil
}

// namespaceOf is where calls of a context are made.
func (w *wire) namespaceOf(ctx context.Context) string {
	if namespace := containerd.Namespace(ctx); namespace != "" {
		return namespace
	}
	return w.namespace
}

// timeout is a duration in the eight digits at most that gRPC allows.
func timeout(d time.Duration) string {
	d = max(d, 0)
	if ms := d.Milliseconds() + 1; ms < 1e8 {
		return strconv.FormatInt(ms, 10) + "m"
	}
	return strconv.FormatInt(min(int64(d/time.Second), 1e8-1), 10) + "S"
}

// broken is why nothing more comes: the end of ctx, or of the connection.
func broken(ctx context.Context, err error) error {
	if why := ctx.Err(); why != nil {
		return why
	}
	return fmt.Errorf("%w: %w", errdefs.ErrUnavailable, err)
}
