package network

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// purgeFlows makes the kernel forget UDP conversations that go where today's rules would
// not send them. Rules see only the first packet: a sensor that never falls silent would
// keep talking to an old replica, or to none. TCP connections end with the replica.
func (n *Networks) purgeFlows(at *survey, f *family, ports []Port, networks []Network) error {
	stale := staleFlow{ports: ports, containers: slices.Clone(n.pools), host: make(map[netip.Addr]bool)}
	for _, w := range networks {
		stale.containers = append(stale.containers, f.subnet(w))
	}
	if err := at.list(); err != nil {
		return err
	}
	others := make(map[int]bool)
	for _, link := range at.links {
		others[link.Attrs().Index] = n.owner.isOthers(link)
	}
	for _, a := range at.addresses {
		p := prefixOf(a.IPNet)
		stale.host[p.Addr()] = true
		if others[a.LinkIndex] {
			stale.others = append(stale.others, p.Masked())
		}
	}
	// The kernel limits the number of connections to some percent of the memory.
	return withHandle(unix.NETLINK_NETFILTER, func(c *netlink.Handle) error {
		_, err := steady("connections", func() (uint, error) {
			return c.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(f.route), stale)
		})
		return err
	})
}

type staleFlow struct {
	ports      []Port
	containers []netip.Prefix
	others     []netip.Prefix // subnets of other owners' containers
	host       map[netip.Addr]bool
}

// MatchConntrackFlow reports whether a conversation has to end. Forward is its first
// packet, and answers come from the source of Reverse.
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
	return answering != asked && !slices.ContainsFunc(s.others, isAnswering) && slices.ContainsFunc(s.containers, isAnswering)
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a, port)
}

func published(ports []Port, protocol string, to netip.AddrPort) (Port, bool) {
	for _, p := range ports {
		if p.Protocol == protocol && p.HostPort == to.Port() && (p.anywhere() || p.HostIP == to.Addr()) {
			return p, true
		}
	}
	return Port{}, false
}
