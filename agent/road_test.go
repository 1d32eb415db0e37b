package agent_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// road is the network between an agent and its WFM in a bubble of synctest. Its
// connections are those of TCP, with descriptors and all. But who waits for the
// other side does so in the bubble, where time goes on then: to the kernel only
// those go who are served at once.
type road struct {
	listener net.Listener
	arrivals chan net.Conn // the WFM's ends of connections
	ended    chan struct{}
	carried  atomic.Int64 // bytes that were written into connections

	mu    sync.Mutex
	open  bool
	ways  []*way
	dials int
}

func newRoad() (*road, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &road{listener: l, arrivals: make(chan net.Conn, 8), ended: make(chan struct{})}, nil
}

// dial is a wfm.Dial.
func (r *road) dial(_ context.Context, network, address string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dials++
	if !r.open {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}
	}
	device, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	wfm, err := r.listener.Accept() // it is the only one that was called
	if err != nil {
		return nil, errors.Join(err, device.Close())
	}
	w := &way{up: newFlow(), down: newFlow()}
	w.device = &end{Conn: device, way: w, in: w.down, out: w.up, road: r, past: newDeadline()}
	w.wfm = &end{Conn: wfm, way: w, in: w.up, out: w.down, road: r, past: newDeadline()}
	select {
	case r.arrivals <- w.wfm:
	case <-r.ended:
		return nil, errors.Join(net.ErrClosed, device.Close(), wfm.Close())
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
		switch {
		case open:
			_ = w.wfm.Close()
		case silently:
			w.up.lose()
			w.down.lose()
			silent = append(silent, w)
		default:
			_ = w.wfm.Close()
			_ = w.device.Close()
		}
	}
	r.ways = silent
}

// dialled is how often the agent tried to get a connection.
func (r *road) dialled() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int64(r.dials)
}

func (r *road) Addr() net.Addr { return r.listener.Addr() }

// shut ends the road for good.
func (r *road) shut() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = false
	for _, w := range r.ways {
		_ = w.wfm.Close()
		_ = w.device.Close()
	}
	r.ways = nil
	close(r.ended)
	return r.listener.Close()
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
	up, down    *flow
	device, wfm *end
}

// flow tells one side what the other has written.
type flow struct {
	mu      sync.Mutex
	ready   int
	ended   bool // nothing more comes
	lost    bool // nothing arrives
	changed chan struct{}
}

func newFlow() *flow { return &flow{changed: make(chan struct{})} }

func (f *flow) tell(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *flow) lose() { f.tell(func() { f.lost = true }) }

func (f *flow) isLost() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost
}

// end is one side of a connection.
type end struct {
	net.Conn
	way     *way
	in, out *flow
	road    *road
	past    *deadline
	closing sync.Once
}

func (e *end) Read(p []byte) (int, error) {
	for {
		e.in.mu.Lock()
		ready, ended, changed := e.in.ready, e.in.ended, e.in.changed
		if e.in.lost {
			ready = 0
		}
		e.in.mu.Unlock()
		past := e.past.channel()
		select {
		case <-past:
			return 0, os.ErrDeadlineExceeded
		default:
		}
		switch {
		case ready > 0:
			n, err := e.Conn.Read(p[:min(len(p), ready)])
			e.in.mu.Lock()
			e.in.ready -= n
			e.in.mu.Unlock()
			return n, err
		case ended:
			return 0, io.EOF
		}
		select {
		case <-changed:
		case <-past:
		}
	}
}

func (e *end) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		if e.out.isLost() {
			return written + len(p), nil
		}
		n, err := e.Conn.Write(p[:min(len(p), 16<<10)])
		written, p = written+n, p[n:]
		e.road.carried.Add(int64(n))
		e.out.tell(func() { e.out.ready += n })
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

func (e *end) Close() (err error) {
	e.closing.Do(func() {
		err = e.Conn.Close()
		if !e.out.isLost() {
			e.out.tell(func() { e.out.ended = true })
		}
		e.in.tell(func() { e.in.ready, e.in.ended = 0, true })
	})
	return err
}

// Deadlines are of the bubble, and of reading alone: nobody is kept waiting who
// writes.
func (e *end) SetDeadline(t time.Time) error     { return e.SetReadDeadline(t) }
func (e *end) SetWriteDeadline(time.Time) error  { return nil }
func (e *end) SetReadDeadline(t time.Time) error { e.past.set(t); return nil }

// deadline is a channel that is closed when its time has come.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	past  chan struct{}
}

func newDeadline() *deadline { return &deadline{past: make(chan struct{})} }

func (d *deadline) channel() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.past
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.past // it is about to be closed
	}
	d.timer = nil
	select {
	case <-d.past:
		d.past = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return
	}
	past := d.past
	if left := time.Until(t); left > 0 {
		d.timer = time.AfterFunc(left, func() { close(past) })
	} else {
		close(past)
	}
}
