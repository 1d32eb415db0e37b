package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/distribution/reference"
)

const (
	attempts     = 5                     // of one request
	firstPause   = 50 * time.Millisecond // before the second attempt, twice as long before each other one
	longestPause = 10 * time.Second      // that a registry may ask for; longer ones are the caller's
	maxRedirects = 10
	agent        = "margolite" // who asks
)

// Options is what a Client needs.
type Options struct {
	Host      string       // on the wire, host[:port]: see HostOf
	PlainHTTP bool         // it speaks HTTP without TLS
	Client    *http.Client // how hosts are reached; of its fields the transport counts
	// Credentials returns what there is for a host on the wire: nothing, a user with a password, or without a user an
	// identity token. nil: nothing.
	Credentials func(host string) (user, secret string, err error)
}

// Client reads from one host. It may be used by several goroutines.
type Client struct {
	host, scheme string
	transport    http.RoundTripper
	credentials  func(host string) (user, secret string, err error)

	mu    sync.Mutex
	doors map[string]*door // by scheme and host
}

// New is a client for one host; nothing is asked yet.
func New(o Options) *Client {
	c := &Client{
		host: o.Host, scheme: "https",
		transport: o.Client.Transport, credentials: o.Credentials,
		doors: make(map[string]*door),
	}
	if o.PlainHTTP {
		c.scheme = "http"
	}
	if c.credentials == nil {
		c.credentials = func(string) (string, string, error) { return "", "", nil }
	}
	return c
}

// HostOf is the host on the wire for the registry that a reference names: Docker Hub has another name there.
func HostOf(registry string) string {
	if registry == "docker.io" {
		return "registry-1.docker.io"
	}
	return registry
}

// request is what is asked for, as often as it may help.
type request struct {
	method string
	url    url.URL
	header http.Header
	scope  string // of the token that is needed
	fresh  bool   // what authorized it last was new
}

// request asks for what the path names in the repository of a reference.
func (c *Client) request(method string, named reference.Named, path, accept string) *request {
	repository := reference.Path(named)
	r := &request{
		method: method,
		url:    url.URL{Scheme: c.scheme, Host: c.host, Path: "/v2/" + repository + "/" + path},
		// A part is what its digest says, and not what a server makes of it.
		header: http.Header{"Accept": {accept}, "Accept-Encoding": {"identity"}, "User-Agent": {agent}},
		scope:  "repository:" + repository + ":pull",
	}
	if domain := reference.Domain(named); HostOf(domain) != c.host { // a mirror of several
		r.url.RawQuery = url.Values{"ns": {domain}}.Encode()
	}
	return r
}

// do returns the answer to a request, if it is a good one.
func (c *Client) do(ctx context.Context, r *request) (*http.Response, error) {
	troubled := false // it has been in trouble before
	for n := 1; ; n++ {
		answer, err := c.send(ctx, r)
		pause := firstPause << (n - 1)
		switch {
		case err != nil:
			if ctx.Err() != nil || troubled || !isTransient(err) {
				return nil, err
			}
			troubled = true
		case answer.StatusCode >= 200 && answer.StatusCode < 300:
			if typeOf(answer) == "text/html" {
				answer.Body.Close()
				return nil, fmt.Errorf("%s %s: %w", r.method, shown(answer.Request.URL), ErrPage)
			}
			return answer, nil
		default:
			err = statusError(answer)
			switch answer.StatusCode {
			case http.StatusUnauthorized:
				if learned, refused := c.learn(ctx, answer, r); refused != nil {
					return nil, refused
				} else if !learned {
					return nil, err
				}
				pause = 0
			case http.StatusMethodNotAllowed, http.StatusNotImplemented: // there are registries that know no HEAD
				if r.method != http.MethodHead {
					return nil, err
				}
				r.method, pause = http.MethodGet, 0
			case http.StatusRequestTimeout, http.StatusTooManyRequests:
				pause = pauseOf(answer, pause)
			case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
				if troubled {
					return nil, err
				}
				troubled = true
				pause = pauseOf(answer, pause)
			default:
				return nil, err
			}
		}
		if n == attempts || pause > longestPause {
			return nil, err
		}
		if err := wait(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// send is one attempt.
func (c *Client) send(ctx context.Context, r *request) (*http.Response, error) {
	hr, err := http.NewRequestWithContext(ctx, r.method, r.url.String(), nil)
	if err != nil {
		return nil, err
	}
	hr.Header = r.header.Clone()
	if err := c.authorize(hr, r); err != nil {
		return nil, err
	}
	client := http.Client{Transport: c.transport, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return errRedirects
		}
		// net/http passes the one on to other ports and to subdomains, and the other to everybody.
		next.Header.Del("Authorization")
		next.Header.Del("Referer")
		return c.authorize(next, r)
	}}
	return client.Do(hr)
}

var errRedirects = errors.New("too many redirects")

// isTransient says that a request may work when it is sent again at once.
func isTransient(err error) bool {
	var silent net.Error
	return isBroken(err) || errors.Is(err, io.EOF) || errors.As(err, &silent) && silent.Timeout()
}

// isBroken says that a connection ended too early.
func isBroken(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// pauseOf is how long a registry wants to be left alone, if it says so.
func pauseOf(answer *http.Response, otherwise time.Duration) time.Duration {
	said := answer.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(said, 10, 31); err == nil {
		return max(otherwise, time.Duration(seconds)*time.Second)
	}
	if at, err := http.ParseTime(said); err == nil {
		return max(otherwise, time.Until(at))
	}
	return otherwise
}

func wait(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
