package network

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	askTimeout     = 2 * time.Second // of one nameserver
	forwardTimeout = 4 * time.Second // of all: programs wait five seconds
)

// forward asks the nameservers in turn. It overwrites the message.
func (z *zone) forward(ctx context.Context, q question, message []byte, stream bool) []byte {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	servers := slices.DeleteFunc(slices.Clone(z.view.Load().DNS), func(a netip.Addr) bool { return a == dnsAddress })
	netns := z.netns
	if len(servers) == 0 { // asked from the host, which may reach others
		servers, netns = readResolvConf(z.dns.resolvConf).nameservers, ""
	}
	servers = servers[:min(len(servers), maxNameservers)]
	timeout := min(askTimeout, forwardTimeout/time.Duration(max(len(servers), 1)))
	var answer []byte
	for _, server := range servers {
		got, err := ask(ctx, timeout, netns, server, q, message, stream)
		if err != nil {
			continue
		}
		answer = got
		if code := rcode(got); code == dnsmessage.RCodeSuccess || code == dnsmessage.RCodeNameError {
			break
		}
	}
	if answer == nil || rcode(answer) != dnsmessage.RCodeSuccess {
		if local := z.localAfterAll(q); local != nil {
			return local
		}
	}
	if answer == nil || len(answer) > q.limit && stream {
		return q.failure(dnsmessage.RCodeServerFailure)
	}
	if len(answer) > q.limit { // more than the client's packet may hold
		reply := q.reply(dnsmessage.RCodeSuccess)
		reply.Truncated = true
		return q.build(reply, nil)
	}
	binary.BigEndian.PutUint16(answer, q.header.ID)
	return answer
}

func rcode(message []byte) dnsmessage.RCode { return dnsmessage.RCode(message[3] & 0xf) }

// ask asks one nameserver, with an unpredictable ID and port.
func ask(ctx context.Context, timeout time.Duration, netns string, server netip.Addr, q question, message []byte, stream bool) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := rand.Read(message[:2]); err != nil {
		return nil, err
	}
	protocol := "udp"
	if stream {
		protocol = "tcp"
	}
	conn, err := dialIn(ctx, netns, protocol, netip.AddrPortFrom(server, dnsPort))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	limit, receive := maxMessage, conn.Read
	if stream {
		limit, receive = maxStream, func(b []byte) (int, error) { return readStream(conn, b) }
		err = writeStream(conn, message)
	} else {
		_, err = conn.Write(message)
	}
	for buffer := make([]byte, limit); err == nil; {
		var size int
		if size, err = receive(buffer); err == nil && isAnswer(buffer[:size], message[:2], q) { // ignore forged answers
			return buffer[:size], nil
		}
	}
	return nil, err
}

func isAnswer(answer, id []byte, asked question) bool {
	if len(answer) < headerSize || answer[2]&0x80 == 0 || !bytes.Equal(answer[:2], id) {
		return false
	}
	var p dnsmessage.Parser
	_, err := p.Start(answer)
	var repeated dnsmessage.Question
	if err == nil {
		repeated, err = p.Question()
	}
	if err != nil { // refused without parsing the question
		return rcode(answer) != dnsmessage.RCodeSuccess && rcode(answer) != dnsmessage.RCodeNameError
	}
	return repeated.Type == asked.Type && repeated.Class == asked.Class && strings.EqualFold(repeated.Name.String(), asked.Name.String())
}

// dialIn connects from a namespace; an empty path is the host's.
func dialIn(ctx context.Context, netns, protocol string, to netip.AddrPort) (conn net.Conn, err error) {
	var dialer net.Dialer
	if netns == "" {
		return dialer.DialContext(ctx, protocol, to.String())
	}
	err = inside(netns, func() error {
		conn, err = dialer.DialContext(ctx, protocol, to.String())
		return err
	})
	return conn, err
}
