package agent_test

import (
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// road is the network between an agent and its WFM in a bubble of synctest. Its
// connections are pipes: who waits for the other side does so in the bubble, where
// time goes on then.
type road struct {
	arrivals chan net.Conn // the WFM's ends of connections
	ended    chan struct{}

	mu   sync.Mutex
	open bool
	ways []*way
}

func newRoad() *road { return &road{arrivals: make(chan net.Conn, 8), ended: make(chan struct{})} }

// dial is a wfm.Dial.
func (r *road) dial(_ context.Context, network, _ string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.open {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}
	}
	w := &way{}
	device, wfm := net.Pipe()
	w.device, w.wfm = end{device, w}, end{wfm, w}
	select {
	case r.arrivals <- w.wfm:
	case <-r.ended:
		return nil, net.ErrClosed
	}
	r.ways = append(r.ways, w)
	return w.device, nil
}

// let opens or closes the road. What was on it then is broken off, or, where it
// is closed in silence, nothing of it arrives any more and nobody is told; the
// WFM gives such connections up when the road opens again.
func (r *road) let(open, silently bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = open
	var silent []*way
	for _, w := range r.ways {
		if silently {
			w.lost.Store(true)
			silent = append(silent, w)
			continue
		}
		w.wfm.Conn.Close()
		w.device.Conn.Close()
	}
	r.ways = silent
}

// Addr is where the road leads.
func (r *road) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8443} }

// shut ends the road for good.
func (r *road) shut() {
	r.let(false, false)
	close(r.ended)
}

// turn is the road as one server after the other has it.
type turn struct {
	*road
	over chan struct{}
	once sync.Once
}

func (r *road) turn() *turn { return &turn{road: r, over: make(chan struct{})} }

func (t *turn) Accept() (net.Conn, error) {
	select {
	case c := <-t.arrivals:
		return c, nil
	case <-t.over:
		return nil, net.ErrClosed
	}
}

func (t *turn) Close() error {
	t.once.Do(func() { close(t.over) })
	return nil
}

// way is one connection.
type way struct {
	device, wfm end
	lost        atomic.Bool // nothing arrives
}

// end is one side of a connection.
type end struct {
	net.Conn
	way *way
}

func (e end) Write(p []byte) (int, error) {
	if e.way.lost.Load() {
		return len(p), nil
	}
	return e.Conn.Write(p)
}
