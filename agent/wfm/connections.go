package wfm

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// Dial makes a connection, as net.Dialer.DialContext does.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// connections gives out transports whose connections do not grow old: after a
// while the transport is replaced as a whole. The old one gets no further
// request, so that each of its connections is closed when its last answer has
// been read.
type connections struct {
	tls     *tls.Config
	timeout time.Duration // to connect
	age     time.Duration
	dial    Dial          // nil: net.Dialer
	trust   func() uint64 // nil: as it ever was

	mu      sync.Mutex
	current *http.Transport
	since   time.Time
	trusted uint64 // what trust gave for current
}

// transport is for the next request, and for that one only.
func (c *connections) transport() *http.Transport {
	c.mu.Lock()
	defer c.mu.Unlock()
	trusted := c.trusted
	if c.trust != nil {
		trusted = c.trust()
	}
	if c.current != nil && (time.Since(c.since) >= c.age || trusted != c.trusted) {
		c.replace(nil)
	}
	c.trusted = trusted
	if c.current == nil {
		c.replace(newTransport(c.tls, c.timeout, c.dialer()))
	}
	return c.current
}

func (c *connections) dialer() Dial {
	if c.dial != nil {
		return c.dial
	}
	return (&net.Dialer{Timeout: c.timeout, KeepAlive: 30 * time.Second}).DialContext
}

// retire gives all present connections up.
func (c *connections) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replace(nil)
}

// replace closes idle connections. An http.Transport then also closes busy
// ones as they become idle, until its next request; there is none.
func (c *connections) replace(next *http.Transport) {
	if c.current != nil {
		c.current.CloseIdleConnections()
	}
	c.current, c.since = next, time.Now()
}

func newTransport(config *tls.Config, timeout time.Duration, dial Dial) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // ID-11, A-44
	return &http.Transport{
		Proxy:               nil, // one that is not transparent breaks mutual TLS
		DialContext:         dial,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: timeout,
		Protocols:           protocols,
		DisableCompression:  true, // it would have no bounds; see body.go

		// Two: a poll and a report at the same time.
		MaxConnsPerHost:        2,
		MaxIdleConns:           2,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        90 * time.Second, // longer than the usual time between polls
		MaxResponseHeaderBytes: maxHeader,
		ReadBufferSize:         4 << 10,
		WriteBufferSize:        4 << 10,
	}
}
