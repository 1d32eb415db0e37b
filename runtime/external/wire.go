package external

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

const (
	// dialTimeout is how long a socket may take to accept.
	dialTimeout = 10 * time.Second

	// window is how many bytes of a stream containerd may send ahead.
	window = 256 << 10

	// maxHeader is how many bytes of headers and trailers an answer may have: messages of errors are among them.
	maxHeader = 64 << 10

	leaseHeader = leases.GRPCHeader
)

// wire is the connection to one socket, which is made when it is needed.
type wire struct {
	socket    string
	namespace string // of calls whose context names none
	http      *http.Transport
}

func newWire(socket, namespace string) *wire {
	dialer := net.Dialer{Timeout: dialTimeout}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &wire{socket, namespace, &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
		Protocols:              protocols,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerStream: window},
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
	}}
}

func (w *wire) close() { w.http.CloseIdleConnections() }

// method is a call of a service of containerd, as "images.v1.Images/Get".
type method string

// call sends one message and returns the one that comes back, which is out.
func call[M proto.Message](ctx context.Context, w *wire, m method, in proto.Message, out M) (M, error) {
	s, err := w.ask(ctx, m, in)
	if err != nil {
		return out, err
	}
	defer s.close()
	if err := s.receive(out); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%s: containerd has not answered: %w", m, errdefs.ErrUnknown)
		}
		return out, err
	}
	return out, s.end()
}

// ask sends one message; the answer has any number of them.
func (w *wire) ask(ctx context.Context, m method, in proto.Message) (*stream, error) {
	sent, err := frame(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m, err)
	}
	return w.open(ctx, m, bytes.NewReader(sent)), nil
}

// open starts a call with what body holds. The stream has to be closed.
func (w *wire) open(ctx context.Context, m method, body io.Reader) *stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{method: m, ctx: ctx, cancel: cancel, answered: make(chan struct{})}
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
	namespace, ok := namespaces.Namespace(ctx)
	if !ok {
		namespace = w.namespace
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("Te", "trailers")
	request.Header.Set(namespaces.GRPCHeader, namespace)
	if lease, ok := leases.FromContext(ctx); ok {
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
