package control

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
)

// A panel or a script needs one or two connections. Many more would take memory that a small device
// does not have, and would keep out an operator who looks for a problem.
//
// Each bound comes in three sizes: for one caller, for all unprivileged users together, and for
// everyone together. A caller is a user; a privileged user (root, and the agent's own) counts by
// process.
const (
	maxOwnConnections    = 32
	maxOthersConnections = 96
	maxConnections       = 128

	maxOwnStreams    = 8
	maxOthersStreams = 24
	maxStreams       = 32

	// Long requests: streams of all kinds, commands, and waiting for a poll. The other connections
	// are for requests that are answered at once.
	maxOwnLasting    = 16
	maxOthersLasting = 48
	maxLasting       = 64

	maxRefusing = 16 // connections that are being refused with an answer
)

// quota bounds what callers hold at the same time: unprivileged users leave room for privileged
// ones, a privileged process leaves room for the next, and the last quarter is reserved for callers
// that hold few.
type quota struct {
	what             string
	own, others, all int // maximum counts

	mu             sync.Mutex
	of             map[string]int // by caller
	foreign, total int            // foreign: of unprivileged users
}

func newQuota(what string, own, others, all int) *quota {
	return &quota{what: what, own: own, others: others, all: all, of: map[string]int{}}
}

// enter counts one more for p until leave is called. known: the kernel identified p.
func (c *quota) enter(p Caller, known bool) (leave func(), err error) {
	who, foreign := "an unknown caller", 1
	switch {
	case known && p.Privileged():
		who, foreign = fmt.Sprintf("process %d", p.PID), 0
	case known:
		who = fmt.Sprintf("user %d", p.UID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	others, all := c.others, c.all
	if c.of[who] >= max(c.own/8, 1) { // except for the last quarter
		others, all = others-others/4, all-all/4
	}
	switch {
	case c.of[who] >= c.own:
		return nil, fmt.Errorf("%w: %s has %d %s", ErrBusy, who, c.own, c.what)
	case foreign > 0 && c.foreign >= others, c.total >= all:
		return nil, fmt.Errorf("%w: there are %d %s", ErrBusy, c.total, c.what)
	}
	c.count(who, foreign, 1)
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.count(who, -foreign, -1)
	}), nil
}

// bounds wraps a handler so that requests must enter the quota.
func (c *quota) bounds(handle handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		conn := connOf(r.Context())
		leave, err := c.enter(conn.peer, conn.known)
		if err != nil {
			return err
		}
		defer leave()
		return handle(w, r)
	}
}

func (c *quota) count(who string, foreign, n int) {
	c.foreign += foreign
	c.total += n
	if c.of[who] += n; c.of[who] == 0 {
		delete(c.of, who)
	}
}

// limitedListener accepts connections within their caller's quota. Of the others, a few are told
// why they are refused; the rest are closed.
type limitedListener struct {
	net.Listener
	server *Server
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		p, known := Peer(conn)
		leave, err := l.server.connections.enter(p, known)
		if err == nil {
			return &limitedConn{Conn: conn, peer: p, known: known, leave: leave}, nil
		}
		select {
		case l.server.refusing <- struct{}{}:
			return &limitedConn{Conn: conn, refused: err, leave: sync.OnceFunc(func() { <-l.server.refusing })}, nil
		default:
			conn.Close()
		}
	}
}

type limitedConn struct {
	net.Conn
	peer  Caller
	known bool
	leave func()

	refused error // why its request is refused; nil: it is not
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

type connKey struct{}

func connOf(ctx context.Context) *limitedConn {
	if c, ok := ctx.Value(connKey{}).(*limitedConn); ok {
		return c
	}
	return &limitedConn{} // unknown caller
}
