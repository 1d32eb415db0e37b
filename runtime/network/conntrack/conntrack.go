// Package conntrack lists the connections that the kernel knows, and makes it
// forget some.
package conntrack

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/netlink"
)

// The numbers of linux/netfilter/nfnetlink_conntrack.h that are used.
const (
	subsystem = 1 // NFNL_SUBSYS_CTNETLINK
	get       = 1 // IPCTNL_MSG_CT_GET
	remove    = 2 // IPCTNL_MSG_CT_DELETE

	tupleOrig  = 1 // CTA_TUPLE_ORIG
	tupleReply = 2
	id         = 12 // CTA_ID
	zone       = 18

	tupleIP    = 1 // CTA_TUPLE_IP
	tupleProto = 2

	sourceIPv4      = 1 // CTA_IP_V4_SRC
	destinationIPv4 = 2
	sourceIPv6      = 3
	destinationIPv6 = 4

	protocol        = 1 // CTA_PROTO_NUM
	sourcePort      = 2
	destinationPort = 3
)

// Flow is a connection, or with UDP a conversation, as it began.
type Flow struct {
	Protocol  byte           // unix.IPPROTO_UDP, ...
	Asked     netip.AddrPort // where the first packet was sent to
	Answering netip.AddrPort // where answers come from: Asked, where nothing is translated

	family byte
	key    netlink.Attributes // by which the kernel knows it
}

// Conn is a connection to one network namespace. It is for one goroutine at a
// time.
type Conn struct{ *netlink.Conn }

// Open connects to the network namespace of the calling thread.
func Open() (*Conn, error) {
	c, err := netlink.Open(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open connection tracking: %w", err)
	}
	return &Conn{c}, nil
}

func message(kind uint16, family byte) *netlink.Message {
	return &netlink.Message{
		Type:   subsystem<<8 | kind,
		Header: []byte{family, unix.NFNETLINK_V0, 0, 0}, // struct nfgenmsg
	}
}

const messageHeader = 4

// Flows are those of a family that are wanted.
func (c *Conn) Flows(family byte, wanted func(Flow) bool) ([]Flow, error) {
	return netlink.List(c.Conn, message(get, family), func(data []byte) (Flow, bool, error) {
		f, err := readFlow(data)
		if err != nil || f.family != family || !wanted(f) {
			return Flow{}, false, err
		}
		return f, true, f.readKey(data)
	})
}

func readFlow(data []byte) (f Flow, err error) {
	if len(data) < messageHeader {
		return Flow{}, fmt.Errorf("cannot read connection: %d bytes are too few", len(data))
	}
	f.family = data[0]
	err = netlink.Value(data[messageHeader:]).Each(func(kind uint16, v netlink.Value) error {
		switch kind {
		case tupleOrig:
			var t tuple
			err := t.read(v)
			f.Protocol, f.Asked = t.protocol, netip.AddrPortFrom(t.destination, t.destinationPort)
			return err
		case tupleReply:
			var t tuple
			err := t.read(v)
			f.Answering = netip.AddrPortFrom(t.source, t.sourcePort)
			return err
		}
		return nil
	})
	if err != nil {
		return Flow{}, fmt.Errorf("cannot read connection: %w", err)
	}
	return f, nil
}

// readKey copies what names the connection.
func (f *Flow) readKey(data []byte) error {
	return netlink.Value(data[messageHeader:]).Each(func(kind uint16, v netlink.Value) error {
		switch kind {
		case tupleOrig:
			f.key.Nest(kind, func() { f.key.Raw(v...) })
		case id, zone:
			f.key.Bytes(kind, v...)
		}
		return nil
	})
}

// tuple is one direction.
type tuple struct {
	source, destination         netip.Addr
	protocol                    byte
	sourcePort, destinationPort uint16
}

func (t *tuple) read(v netlink.Value) error {
	return v.Each(func(kind uint16, v netlink.Value) error {
		switch kind {
		case tupleIP:
			return v.Each(t.readAddress)
		case tupleProto:
			return v.Each(t.readProtocol)
		}
		return nil
	})
}

func (t *tuple) readAddress(kind uint16, v netlink.Value) error {
	switch kind {
	case sourceIPv4, sourceIPv6:
		t.source, _ = netip.AddrFromSlice(v)
	case destinationIPv4, destinationIPv6:
		t.destination, _ = netip.AddrFromSlice(v)
	}
	return nil
}

func (t *tuple) readProtocol(kind uint16, v netlink.Value) error {
	switch kind {
	case protocol:
		if len(v) > 0 {
			t.protocol = v[0]
		}
	case sourcePort:
		t.sourcePort = v.Big16()
	case destinationPort:
		t.destinationPort = v.Big16()
	}
	return nil
}

// Forget ends the flow: the next packet is the first of another one. It may
// have ended by itself.
func (c *Conn) Forget(f Flow) error {
	m := message(remove, f.family)
	m.Attributes = f.key
	if err := c.Do(m); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cannot forget connection to %s: %w", f.Asked, err)
	}
	return nil
}
