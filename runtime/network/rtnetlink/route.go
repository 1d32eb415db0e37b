package rtnetlink

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/netlink"
)

// Route is a way to a destination.
type Route struct {
	Destination netip.Prefix // of no bits: everything
	Gateway     netip.Addr   // none: the destination is on the link itself
	Link        int          // index; 0: the route has several ways, or leads nowhere
	Priority    uint32       // the metric: the lowest wins
	Table       uint32
	Type        byte // unix.RTN_UNICAST, ...
	Scope       byte // unix.RT_SCOPE_UNIVERSE, ...
	Protocol    byte // who made it: unix.RTPROT_BOOT, ...
}

// Default is the route to everything, by a gateway, or, without one, by the
// link itself, in the main table.
func Default(link int, family byte, gateway netip.Addr) Route {
	r := Route{
		Destination: netip.PrefixFrom(unspecified(family), 0), Gateway: gateway, Link: link,
		Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST, Scope: unix.RT_SCOPE_UNIVERSE, Protocol: unix.RTPROT_BOOT,
	}
	if !gateway.IsValid() {
		r.Scope = unix.RT_SCOPE_LINK
	}
	return r
}

func unspecified(family byte) netip.Addr {
	if family == unix.AF_INET6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// Routes are those of a family, of every table.
func (c *Conn) Routes(family byte) ([]Route, error) {
	m := &netlink.Message{Type: unix.RTM_GETROUTE, Header: make([]byte, unix.SizeofRtMsg)}
	m.Header[0] = family
	return netlink.List(c.Conn, m, readRoute)
}

// readRoute leaves out what the kernel only remembers of other routes.
func readRoute(data []byte) (Route, bool, error) {
	if len(data) < unix.SizeofRtMsg {
		return Route{}, false, fmt.Errorf("cannot read route: %d bytes are too few", len(data))
	}
	family, bits, flags := data[0], int(data[1]), binary.NativeEndian.Uint32(data[8:])
	r := Route{Table: uint32(data[4]), Protocol: data[5], Scope: data[6], Type: data[7]}
	destination := unspecified(family)
	err := netlink.Value(data[unix.SizeofRtMsg:]).Each(func(kind uint16, v netlink.Value) error {
		switch kind {
		case unix.RTA_DST:
			destination, _ = netip.AddrFromSlice(v)
		case unix.RTA_GATEWAY:
			r.Gateway, _ = netip.AddrFromSlice(v)
		case unix.RTA_OIF:
			r.Link = int(v.Uint32())
		case unix.RTA_PRIORITY:
			r.Priority = v.Uint32()
		case unix.RTA_TABLE:
			r.Table = v.Uint32()
		}
		return nil
	})
	if err != nil {
		return Route{}, false, fmt.Errorf("cannot read route: %w", err)
	}
	r.Destination = netip.PrefixFrom(destination, bits)
	known := family == unix.AF_INET || family == unix.AF_INET6
	return r, known && r.Destination.IsValid() && flags&unix.RTM_F_CLONED == 0, nil
}

// ReplaceRoute makes the route, in place of another one to the same destination
// if there is one.
func (c *Conn) ReplaceRoute(r Route) error {
	m := routeMessage(unix.RTM_NEWROUTE, r)
	m.Flags = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	return c.Do(m)
}

// RemoveRoute removes the route. One that is not there is unix.ESRCH.
func (c *Conn) RemoveRoute(r Route) error {
	return c.Do(routeMessage(unix.RTM_DELROUTE, r))
}

func routeMessage(kind uint16, r Route) *netlink.Message {
	m := &netlink.Message{Type: kind, Header: make([]byte, unix.SizeofRtMsg)} // struct rtmsg
	h := m.Header
	h[0], h[1], h[5], h[6], h[7] = unix.AF_INET, byte(r.Destination.Bits()), r.Protocol, r.Scope, r.Type
	if r.Destination.Addr().Is6() {
		h[0] = unix.AF_INET6
	}
	m.Uint32(unix.RTA_TABLE, r.Table)
	m.Bytes(unix.RTA_DST, r.Destination.Addr().AsSlice()...)
	if r.Gateway.IsValid() {
		m.Bytes(unix.RTA_GATEWAY, r.Gateway.AsSlice()...)
	}
	if r.Link != 0 {
		m.Uint32(unix.RTA_OIF, uint32(r.Link))
	}
	if r.Priority != 0 {
		m.Uint32(unix.RTA_PRIORITY, r.Priority)
	}
	return m
}
