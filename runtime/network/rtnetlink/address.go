package rtnetlink

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/netlink"
)

// Address is that of a link. Its prefix has the whole address.
type Address struct {
	Link   int // index
	Prefix netip.Prefix
	Peer   netip.Prefix // of a link between two points: the other one's; else zero
}

// Addresses are those of every link, of the family, or of both with
// unix.AF_UNSPEC.
func (c *Conn) Addresses(family byte) ([]Address, error) {
	m := &netlink.Message{Type: unix.RTM_GETADDR, Header: addressHeader(family, 0, 0, 0)}
	return netlink.List(c.Conn, m, func(data []byte) (Address, bool, error) {
		a, err := readAddress(data)
		ours := err == nil && (family == unix.AF_UNSPEC || family == data[0])
		return a, ours && a.Prefix.IsValid(), err
	})
}

// addressHeader is a struct ifaddrmsg.
func addressHeader(family byte, bits int, flags byte, link int) []byte {
	return binary.NativeEndian.AppendUint32([]byte{family, byte(bits), flags, unix.RT_SCOPE_UNIVERSE}, uint32(link))
}

func readAddress(data []byte) (Address, error) {
	if len(data) < unix.SizeofIfAddrmsg {
		return Address{}, fmt.Errorf("cannot read address: %d bytes are too few", len(data))
	}
	bits := int(data[1])
	a := Address{Link: int(binary.NativeEndian.Uint32(data[4:]))}
	var local, other netip.Addr
	err := netlink.Value(data[unix.SizeofIfAddrmsg:]).Each(func(kind uint16, v netlink.Value) error {
		switch kind {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(v)
		case unix.IFA_ADDRESS:
			other, _ = netip.AddrFromSlice(v)
		}
		return nil
	})
	if err != nil {
		return Address{}, fmt.Errorf("cannot read address of link %d: %w", a.Link, err)
	}
	switch {
	case !local.IsValid(): // as IPv6 does where there is no peer
		a.Prefix = netip.PrefixFrom(other, bits)
	case local == other:
		a.Prefix = netip.PrefixFrom(local, bits)
	default:
		a.Prefix, a.Peer = netip.PrefixFrom(local, local.BitLen()), netip.PrefixFrom(other, bits)
	}
	return a, nil
}

// AddAddress gives a link the address. With IPv4 the last one of its prefix
// becomes that for all. One of IPv6 is used at once, without asking the link
// whether somebody has it.
func (c *Conn) AddAddress(a Address) error {
	m := addressMessage(unix.RTM_NEWADDR, a)
	m.Flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	return c.Do(m)
}

// RemoveAddress takes the address from its link.
func (c *Conn) RemoveAddress(a Address) error {
	return c.Do(addressMessage(unix.RTM_DELADDR, a))
}

func addressMessage(kind uint16, a Address) *netlink.Message {
	of := a.Prefix
	if a.Peer.IsValid() {
		of = a.Peer
	}
	family, flags := byte(unix.AF_INET), byte(0)
	if of.Addr().Is6() {
		family, flags = unix.AF_INET6, unix.IFA_F_NODAD
	}
	m := &netlink.Message{Type: kind, Header: addressHeader(family, of.Bits(), flags, a.Link)}
	m.Bytes(unix.IFA_LOCAL, a.Prefix.Addr().AsSlice()...)
	m.Bytes(unix.IFA_ADDRESS, of.Addr().AsSlice()...)
	if family == unix.AF_INET && of.Bits() < 31 { // RFC 3021: links of two have none
		m.Bytes(unix.IFA_BROADCAST, lastOf(of).AsSlice()...)
	}
	return m
}

// lastOf is the last address of an IPv4 prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	last := binary.BigEndian.Uint32(b[:]) | ^uint32(0)>>p.Bits()
	binary.BigEndian.PutUint32(b[:], last)
	return netip.AddrFrom4(b)
}
