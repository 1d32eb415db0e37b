package wfm

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// Dial makes a connection, as net.Dialer.DialContext does.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// connections gives out transports whose connections do not grow old: after a while the transport
// is replaced as a whole and gets no further request, so that each of its connections is closed
// when its last answer has been read.
type connections struct {
	Options // with all defaults

	mu      sync.Mutex
	current *http.Transport
	since   time.Time
	trusted uint64 // what Trust gave for current
}

func newConnections(o Options) *connections {
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: o.Timeout, KeepAlive: 30 * time.Second}).DialContext
	}
	if o.Trust == nil {
		o.Trust = func() uint64 { return 0 }
	}
	return &connections{Options: o}
}

// transport is for the next request, and for that one only.
func (c *connections) transport() *http.Transport {
	c.mu.Lock()
	defer c.mu.Unlock()
	trusted := c.Trust()
	if c.current == nil || time.Since(c.since) >= c.Limits.ConnectionAge || trusted != c.trusted {
		c.replace(c.newTransport())
	}
	c.trusted = trusted
	return c.current
}

func (c *connections) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replace(nil)
}

// replace closes idle connections. An http.Transport then also closes busy ones as they become
// idle, until its next request; there is none.
func (c *connections) replace(next *http.Transport) {
	if c.current != nil {
		c.current.CloseIdleConnections()
	}
	c.current, c.since = next, time.Now()
}

func (c *connections) newTransport() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // ID-11, A-44
	return &http.Transport{
		Proxy:               nil, // a proxy that terminates TLS breaks mutual TLS
		DialContext:         c.Dial,
		TLSClientConfig:     c.TLS,
		TLSHandshakeTimeout: c.Timeout,
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
