package main

import (
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// traffic is what went over the connections of a server, as TCP's payload: the
// records of TLS, with the handshakes.
type traffic struct {
	Connections int64 `json:"connections"` // each of them begins with a handshake
	Up          int64 `json:"bytesUp"`     // to the server
	Down        int64 `json:"bytesDown"`
	Packets     int64 `json:"packets"` // of both, with those that carry nothing
}

func (t traffic) plus(o traffic) traffic {
	return traffic{t.Connections + o.Connections, t.Up + o.Up, t.Down + o.Down, t.Packets + o.Packets}
}

func (t traffic) since(before traffic) traffic {
	return traffic{t.Connections - before.Connections, t.Up - before.Up, t.Down - before.Down, t.Packets - before.Packets}
}

func (t traffic) each(n int) traffic {
	round := func(v int64) int64 { return (v + int64(n)/2) / int64(n) }
	return traffic{round(t.Connections), round(t.Up), round(t.Down), round(t.Packets)}
}

// headers is what IPv4 and TCP put before the payload of each packet, with the
// timestamps that Linux sends.
const headers = 20 + 20 + 12

// bytes is everything, with the headers.
func (t traffic) bytes() int64 { return t.Up + t.Down + headers*t.Packets }

// counter counts what goes over all connections of its listeners.
type counter struct {
	mu    sync.Mutex
	gone  traffic // of connections that are closed
	conns map[*countedConn]struct{}
}

// listen listens on address, host:port.
func (c *counter) listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	return countedListener{l, c}, err
}

// count is what there has been up to now.
func (c *counter) count() traffic {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := c.gone
	for conn := range c.conns {
		sum = sum.plus(conn.count())
	}
	return sum
}

type countedListener struct {
	net.Listener
	counter *counter
}

func (l countedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &countedConn{Conn: conn, counter: l.counter}
	c.raw, err = conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	l.counter.mu.Lock()
	defer l.counter.mu.Unlock()
	if l.counter.conns == nil {
		l.counter.conns = map[*countedConn]struct{}{}
	}
	l.counter.conns[c] = struct{}{}
	return c, nil
}

// countedConn is counted by the kernel, once more when it is closed.
type countedConn struct {
	net.Conn
	raw     syscall.RawConn
	counter *counter
}

func (c *countedConn) Close() error {
	c.counter.mu.Lock()
	if _, open := c.counter.conns[c]; open {
		c.counter.gone = c.counter.gone.plus(c.count())
		delete(c.counter.conns, c)
	}
	c.counter.mu.Unlock()
	return c.Conn.Close()
}

// count asks the kernel; of a connection that is closed it knows nothing.
func (c *countedConn) count() traffic {
	t := traffic{Connections: 1}
	_ = c.raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
			t.Up, t.Down = int64(info.Bytes_received), int64(info.Bytes_sent-info.Bytes_retrans)
			t.Packets = int64(info.Segs_in) + int64(info.Segs_out)
		}
	})
	return t
}
