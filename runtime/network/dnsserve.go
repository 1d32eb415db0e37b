package network

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/runtime/limit"
)

const (
	streamIdle    = 10 * time.Second // without a query on a TCP connection
	streamQueries = 64               // on one
)

// servePackets answers UDP until the socket is closed.
func (z *zone) servePackets(ctx context.Context, conn *net.UDPConn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	for {
		// While nobody asks, there is no buffer.
		var buffer *[maxMessage]byte
		var size int
		var from unix.Sockaddr
		var failure error
		err := raw.Read(func(fd uintptr) bool {
			buffer = z.dns.buffers.Get().(*[maxMessage]byte)
			size, from, failure = unix.Recvfrom(int(fd), buffer[:], unix.MSG_TRUNC)
			if failure == unix.EAGAIN {
				z.dns.buffers.Put(buffer)
				return false
			}
			return true
		})
		if err != nil {
			return
		}
		to, ok := from.(*unix.SockaddrInet4)
		if failure != nil || !ok || size > maxMessage {
			z.dns.buffers.Put(buffer)
			continue
		}
		peer := netip.AddrPortFrom(netip.AddrFrom4(to.Addr), uint16(to.Port))
		z.contained(func() { z.packet(ctx, conn, peer, buffer, size) })
	}
}

// contained does something for who asked, and says nothing to him where it panics.
func (z *zone) contained(do func()) {
	err := contain.Call(func() error { do(); return nil })
	if err != nil && z.dns.contained != nil {
		z.dns.contained("names for "+z.name, err)
	}
}

// packet answers one, and gives back the buffer it is in.
func (z *zone) packet(ctx context.Context, conn *net.UDPConn, peer netip.AddrPort, buffer *[maxMessage]byte, size int) {
	reply, forward := z.answer(buffer[:size], false)
	if forward == nil {
		z.dns.buffers.Put(buffer)
		if reply != nil {
			_, _ = conn.WriteToUDPAddrPort(reply, peer)
		}
		return
	}
	z.dns.wait.Go(func() {
		defer z.dns.buffers.Put(buffer)
		defer forward.slot.Release()
		z.contained(func() { _, _ = conn.WriteToUDPAddrPort(z.forward(ctx, *forward, buffer[:size], false), peer) })
	})
}

// answer says what is known here, or returns the question that is to be forwarded,
// with a place for it taken. Neither: nothing is to be said.
func (z *zone) answer(message []byte, stream bool) (reply []byte, forward *question) {
	q, code, ok := parseQuestion(message, stream)
	if !ok {
		return nil, nil
	}
	if code != dnsmessage.RCodeSuccess {
		return q.failure(code), nil
	}
	if reply := z.local(q); reply != nil {
		return reply, nil
	}
	switch v := z.view.Load(); {
	case v.isInternal():
		if reply := z.localAfterAll(q); reply != nil {
			return reply, nil
		}
		return q.failure(dnsmessage.RCodeServerFailure), nil
	case v.minDots() > 0 && q.name != "" && !strings.Contains(q.name, "."):
		// Nobody means the root servers. The next question has a search domain.
		return q.failure(dnsmessage.RCodeNameError), nil
	}
	if q.slot = z.dns.queries.Try(limit.Key{Party: z.name}, nil); q.slot == nil {
		return q.failure(dnsmessage.RCodeServerFailure), nil
	}
	return nil, &q
}

// serveStreams answers TCP until the socket is closed.
func (z *zone) serveStreams(ctx context.Context, listen net.Listener) {
	for {
		conn, err := listen.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many files: those of others end
			timer := time.NewTimer(100 * time.Millisecond)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			continue
		}
		z.dns.wait.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
			z.contained(func() {
				for range streamQueries {
					if ctx.Err() != nil || z.stream(ctx, conn) != nil {
						return
					}
				}
			})
		})
	}
}

// stream answers the next query of a TCP connection.
func (z *zone) stream(ctx context.Context, conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(streamIdle)); err != nil {
		return err
	}
	buffer := z.dns.buffers.Get().(*[maxMessage]byte)
	defer z.dns.buffers.Put(buffer)
	size, err := readStream(conn, buffer[:])
	if err != nil {
		return err
	}
	reply, forward := z.answer(buffer[:size], true)
	if forward != nil {
		defer forward.slot.Release()
		reply = z.forward(ctx, *forward, buffer[:size], true)
	}
	if reply == nil {
		return errors.New("no query")
	}
	return writeStream(conn, reply)
}

// readStream reads a message with its size in front.
func readStream(r io.Reader, buffer []byte) (int, error) {
	if _, err := io.ReadFull(r, buffer[:2]); err != nil {
		return 0, err
	}
	size := int(binary.BigEndian.Uint16(buffer))
	if size > len(buffer) {
		return 0, io.ErrShortBuffer
	}
	return io.ReadFull(r, buffer[:size])
}

// writeStream writes a message with its size in front, as one packet.
func writeStream(w io.Writer, message []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(message)), uint16(len(message))), message...))
	return err
}
