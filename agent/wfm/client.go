package wfm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/margolite/margolite/agent/margo"
)

// Options configure a Client.
type Options struct {
	// URL is the base of the WFM's interface: https, with a path if it is mounted below one. It
	// is routing information only (ID-27).
	URL string
	// TLS authenticates the WFM and, with mutual TLS, the device. identity.Identity makes it for
	// rc.3, identity.ServerTLS for earlier dialects and gateways that terminate TLS.
	TLS *tls.Config
	// Trust changes whenever TLS relies on other anchors or certificates: no request is made over
	// an older connection (ID-13). Nil: it never changes.
	Trust func() uint64
	// Dialect of the WFM; RC3 if zero. A refusal never changes it, to prevent a downgrade.
	Dialect margo.Revision
	// ClientID is the result of an earlier Onboard; empty: not onboarded yet. RC3 has none.
	ClientID string
	// Habits are earlier Client.Habits of this WFM.
	Habits Habits
	// Sign signs each attempt just before it is sent, for dialects before rc.3: identity.Device.
	Sign func(r *http.Request, body []byte) error
	// Authorization gives that header's value, for a gateway in front of the WFM; nil: none is
	// sent. It is called for each request.
	Authorization func() (string, error)
	// Dial makes the connections to the WFM; nil: net.Dialer does.
	Dial Dial
	// Logger is told what is tolerated; nil: nothing is logged.
	Logger *slog.Logger
	Limits Limits
	// Strict refuses deployments whose ids are not UUIDs, and takes documents only from
	// the bundle, which then must exist.
	Strict bool
	// Timeout bounds the WFM's silence, from connecting to the last byte; 0: 30 s.
	Timeout time.Duration
	// Spool keeps the received part of a bundle, so that its transfer can resume; nil: documents
	// come one by one, unless Strict is set, which needs it.
	Spool Spool
}

// Client speaks to one WFM. It is safe for concurrent use.
type Client struct {
	options Options  // with its defaults
	base    *url.URL // with a slash at the end
	wire    *connections

	clientID   atomic.Pointer[string] // never nil
	fresh      atomic.Bool            // onboarded by this client, and nothing was reported since
	withoutID  atomic.Bool            // capabilities are reported without the id of the device in the path
	habits     atomic.Pointer[Habits] // never nil
	statusForm atomic.Int32           // index of the right one in statusForms + 1; 0: not known
	acceptAny  atomic.Bool            // the WFM rejects our Accept header
	failedWay  atomic.Int32           // the way to documents that the WFM last failed to serve (5xx): the other comes first
	garbled    atomic.Bool            // single documents of this WFM did not match their digests: the bundle comes first

	spooling chan struct{} // holds a token while a bundle is fetched

	serverTime atomic.Pointer[serverTime] // nil: not heard yet

	said sync.Map // messages of warnOnce
}

// New makes a client without sending anything.
func New(o Options) (*Client, error) {
	base, err := margo.HTTPS(o.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot use WFM URL: %w", err)
	case base.RawQuery != "":
		return nil, fmt.Errorf("cannot use WFM URL %q: expected no query", base.Redacted())
	case o.TLS == nil:
		return nil, errors.New("cannot connect to a WFM without a TLS configuration")
	case o.Dialect.Signed() && o.Sign == nil:
		return nil, fmt.Errorf("cannot connect to a WFM of revision %s without signing requests", o.Dialect)
	}
	// The one form that both sides of a signature write the same way.
	base.Host = strings.TrimSuffix(strings.ToLower(base.Host), ":443")
	switch {
	case !o.Dialect.Signed():
		o.Sign, o.ClientID = nil, ""
	case o.ClientID != "":
		if err := margo.CheckClientID(o.ClientID); err != nil {
			return nil, fmt.Errorf("cannot connect to a WFM: %w", err)
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.Limits = o.Limits.WithDefaults()
	c := &Client{options: o, base: base.JoinPath("/"), spooling: make(chan struct{}, 1), wire: newConnections(o)}
	c.habits.Store(&o.Habits)
	c.withoutID.Store(o.Dialect == margo.RC1)
	c.clientID.Store(&o.ClientID)
	return c, nil
}

func (c *Client) warnOnce(message string, args ...any) {
	if _, said := c.said.LoadOrStore(message, true); !said {
		c.options.Logger.Warn(message, args...)
	}
}

// CloseIdle closes all connections: idle ones now, the others when their answer has been read.
func (c *Client) CloseIdle() { c.wire.retire() }

// ServerTime is the present according to the authenticated WFM's latest answer; zero before the
// first. A device without a clock can learn from it.
func (c *Client) ServerTime() time.Time {
	if t := c.serverTime.Load(); t != nil {
		return t.told
	}
	return time.Time{}
}

// ServerLag is how far a clock that shows now is behind that of the WFM, by its latest answer;
// negative: ahead. It is false before the first.
func (c *Client) ServerLag(now time.Time) (time.Duration, bool) {
	if t := c.serverTime.Load(); t != nil {
		return t.told.Sub(now.Add(-time.Since(t.heard))), true
	}
	return 0, false
}

// serverTime is what the WFM told, to the second, and when that was heard.
type serverTime struct{ told, heard time.Time }

type request struct {
	op       string // for errors: "cannot <op>"
	who      string // is asked; empty: the WFM
	method   string // empty: GET
	url      *url.URL
	resource string      // in place of url: of this client
	header   http.Header // beside those that send sets; may be nil
	etag     string      // makes it conditional, if usable
	body     []byte      // JSON; nil: none
	own      bool        // a 404 means that the WFM does not know this client
	limit    int64       // of the answer's body; 0: it is not read
	unsigned bool        // in all dialects

	// sink, if not nil, reads the raw body of a successful answer; limit bounds the time for it.
	sink func(response *http.Response, body io.Reader) error
}

type answer struct {
	status int
	header http.Header
	etag   string // "" where it cannot be used
	body   []byte
}

// do sends a request and reads the answer. Its errors are *Error for an unsuccessful answer,
// *connectionError if none arrived, and those of the content.
func (c *Client) do(ctx context.Context, r request) (*answer, error) {
	if r.url == nil {
		var err error
		if r.url, err = c.endpoint(r.resource); err != nil {
			return nil, fmt.Errorf("cannot %s: %w", r.op, err)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.options.Limits.deadline(c.options.Timeout, r.limit), errSlow)
	defer cancel()
	ctx, poke, stop := watch(ctx, c.options.Timeout)
	defer stop()

	response, err := c.send(ctx, r)
	if err != nil {
		return nil, &connectionError{r.op, cause(ctx, err)}
	}
	defer response.Body.Close()
	poke()
	c.noteTime(response.Header)
	body := noted{response.Body, func(n int, err error) error {
		if n > 0 {
			poke()
		}
		return err
	}}

	switch status := response.StatusCode; {
	case status == http.StatusNotModified && margo.UsableETag(r.etag):
		return &answer{status: status}, nil
	case status < 200 || status > 299:
		return nil, c.refusal(r, response, body)
	case r.limit == 0:
		if isPage(response.Header, skim(response.Header, body, maxIgnored)) { // a body read to its end lets the connection be reused
			return nil, &connectionError{r.op, errPage}
		}
		return &answer{status: status}, nil
	}

	var content []byte
	switch encoding, unknown := contentEncoding(response.Header); {
	case r.sink != nil:
		err = r.sink(response, body)
	case unknown != nil:
		err = unknown
	default:
		content, err = readBody(body, encoding, r.limit)
	}
	// Even without an error: a server that notices the client leaving may end the body in good
	// order while the connection is being closed.
	err = cause(ctx, err)
	switch {
	case err == nil:
		a := &answer{response.StatusCode, response.Header, response.Header.Get("ETag"), content}
		if !margo.UsableETag(a.etag) {
			a.etag = ""
		}
		return a, nil
	case errors.Is(err, ErrTooLarge):
		return nil, fmt.Errorf("cannot %s: %w: more than %d bytes", r.op, err, r.limit)
	case errors.Is(err, errEncoding), errors.Is(err, errSpool), errors.Is(err, errRange):
		return nil, fmt.Errorf("cannot %s: %w", r.op, err)
	}
	return nil, &connectionError{r.op, err}
}

func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	var body io.Reader
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	httpRequest, err := http.NewRequestWithContext(ctx, r.method, r.url.String(), body)
	if err != nil {
		return nil, err
	}
	httpRequest.Header.Set("User-Agent", "margolite")
	httpRequest.Header.Set("Accept-Encoding", "gzip")
	if r.body != nil {
		httpRequest.Header.Set("Content-Type", "application/json")
	}
	if margo.UsableETag(r.etag) { // a kept one may be damaged
		httpRequest.Header.Set("If-None-Match", r.etag)
	}
	maps.Copy(httpRequest.Header, r.header)
	if err := c.authenticate(httpRequest, r); err != nil {
		return nil, err
	}
	// Not an http.Client: there are no cookies, and a redirect is an unsuccessful answer like any
	// other. The transport replaces a dead connection and sends the same bytes again: a signature
	// is then older by no more than the timeout.
	return c.wire.transport().RoundTrip(httpRequest)
}

func (c *Client) authenticate(httpRequest *http.Request, r request) error {
	if c.options.Authorization != nil {
		value, err := c.options.Authorization()
		if err != nil {
			return err
		}
		httpRequest.Header.Set("Authorization", value)
	}
	if c.options.Sign != nil && !r.unsigned {
		return c.options.Sign(httpRequest, r.body) // last: it may cover any header field
	}
	return nil
}

// refusal is the error for an unsuccessful answer, with all it says.
func (c *Client) refusal(r request, response *http.Response, body io.Reader) *Error {
	e := &Error{Op: r.op, Who: r.who, Status: response.StatusCode}
	if e.Status >= 300 && e.Status <= 399 {
		e.Location = response.Header.Get("Location")
	}
	content := skim(response.Header, body, margo.MaxProblemBytes)
	e.Problem = margo.ParseProblem(response.Header.Get("Content-Type"), e.Status, content)
	e.Page = isPage(response.Header, content)
	e.meaning = c.meaning(r, e)
	e.RetryAfter = margo.RetryAfter(response.Header, e.Problem, time.Now())
	return e
}

// meaning is what an answer says about this client rather than the request, in dialects and at
// gateways that identify it by request.
func (c *Client) meaning(r request, e *Error) error {
	switch {
	case e.Status == http.StatusUnauthorized && (c.options.Dialect.Signed() || c.options.Authorization != nil):
		return ErrUnauthenticated
	case e.Status == http.StatusNotFound && c.options.Dialect.Signed() &&
		(e.Problem.Kind() == margo.ProblemInvalidClient || r.own && e.Problem.Kind() == margo.ProblemOther):
		return ErrClientUnknown
	}
	return nil
}

func (c *Client) noteTime(h http.Header) {
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		c.serverTime.Store(&serverTime{date, time.Now()})
	}
}

// cause is why a request failed: the reason for giving it up, if it was given up.
func cause(ctx context.Context, err error) error {
	if given := context.Cause(ctx); given != nil {
		return given
	}
	return err
}

func (c *Client) sameOrigin(u *url.URL) bool {
	return u.Scheme == "https" && u.User == nil && u.Opaque == "" &&
		strings.EqualFold(u.Hostname(), c.base.Hostname()) && cmp.Or(u.Port(), defaultPort) == cmp.Or(c.base.Port(), defaultPort)
}
