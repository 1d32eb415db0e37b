package network

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/runtime/limit"
)

const (
	streamIdle    = 10 * time.Second // without a query on a TCP connection
	streamQueries = 64               // on one connection
)

// servePackets answers UDP until the socket is closed or ctx ends. Queries beyond the limit
// wait in the socket; the kernel drops those without room, at the container's expense.
func (z *zone) servePackets(ctx context.Context, conn *net.UDPConn) {
	for buffer := make([]byte, maxQuery+1); z.asked.Wait(ctx) == nil; {
		size, peer, err := conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && size <= maxQuery {
			z.contained(func() { z.packet(ctx, conn, peer, buffer[:size]) })
		}
	}
}

// contained calls do; after a panic the client gets no answer.
func (z *zone) contained(do func()) {
	err := contain.Call(func() error { do(); return nil })
	if err != nil && z.dns.contained != nil {
		z.dns.contained("names for "+z.name, err)
	}
}

func (z *zone) packet(ctx context.Context, conn *net.UDPConn, peer netip.AddrPort, message []byte) {
	reply, forward := z.answer(message, false)
	if reply != nil {
		_, _ = conn.WriteToUDPAddrPort(reply, peer)
	}
	if forward == nil {
		return
	}
	message = bytes.Clone(message) // the next one comes into the same buffer
	z.dns.wait.Go(func() {
		defer forward.slot.Release()
		z.contained(func() { _, _ = conn.WriteToUDPAddrPort(z.forward(ctx, *forward, message, false), peer) })
	})
}

// answer returns a reply, or a question to forward that holds a slot, or neither.
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
		// Nobody asks for the root servers on purpose. The next question has a search domain.
		return q.failure(dnsmessage.RCodeNameError), nil
	}
	if q.slot = z.dns.queries.Try(limit.Key{Party: z.name}, nil); q.slot == nil {
		return q.failure(dnsmessage.RCodeServerFailure), nil
	}
	return nil, &q
}

func (z *zone) serveStreams(ctx context.Context, listen net.Listener) {
	for z.asked.Wait(ctx) == nil {
		conn, err := listen.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many open files: connections will end
			continue
		}
		z.dns.wait.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
			z.contained(func() {
				for range streamQueries {
					if z.asked.Wait(ctx) != nil || z.stream(ctx, conn) != nil {
						return
					}
				}
			})
		})
	}
}

func (z *zone) stream(ctx context.Context, conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(streamIdle)); err != nil {
		return err
	}
	buffer := make([]byte, maxQuery)
	size, err := readStream(conn, buffer)
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

// writeStream writes the size and the message in one packet.
func writeStream(w io.Writer, message []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(message)), uint16(len(message))), message...))
	return err
}
