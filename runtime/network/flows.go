package network

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// purgeFlows makes the kernel forget the UDP conversations that go where the
// rules of today would not send them. Rules see only the first packet of a
// conversation: a sensor that never falls silent would go on talking to the
// replica of yesterday, or to none. TCP needs no such help, for a connection
// ends with the replica.
func purgeFlows(f family, ports []Port, containers []netip.Prefix) error {
	addrs, err := complete(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, f.route) })
	if err != nil {
		return err
	}
	stale := staleFlow{ports: ports, containers: containers, host: make(map[netip.Addr]bool)}
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok {
			stale.host[p.Addr()] = true
		}
	}
	_, err = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, f.flows, stale)
	return err
}

// staleFlow matches the conversations that have to end.
type staleFlow struct {
	ports      []Port
	containers []netip.Prefix
	host       map[netip.Addr]bool
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (s staleFlow) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	asked := addrPort(f.Forward.DstIP, f.Forward.DstPort)
	answering := addrPort(f.Reverse.SrcIP, f.Reverse.SrcPort)
	if p, ok := published(s.ports, "udp", asked); ok && (s.host[asked.Addr()] || asked.Addr().IsLoopback()) {
		return answering != p.target()
	}
	isAnswering := func(p netip.Prefix) bool { return p.Contains(answering.Addr()) }
	return answering != asked && slices.ContainsFunc(s.containers, isAnswering)
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), port)
}
