package network

import (
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/conntrack"
	"github.com/margolite/margolite/runtime/network/rtnetlink"
)

// purgeFlows makes the kernel forget the UDP conversations that go where the
// rules of today would not send them. Rules see only the first packet of a
// conversation: a sensor that never falls silent would go on talking to the
// replica of yesterday, or to none. TCP needs no such help, for a connection
// ends with the replica.
func purgeFlows(f *family, ports []Port, containers []netip.Prefix) error {
	stale := staleFlow{ports: ports, containers: containers, host: make(map[netip.Addr]bool)}
	err := withLinks(func(c *rtnetlink.Conn) error {
		addrs, err := c.Addresses(f.route)
		for _, a := range addrs {
			stale.host[a.Prefix.Addr()] = true
		}
		return err
	})
	if err != nil {
		return err
	}
	c, err := conntrack.Open()
	if err != nil {
		return err
	}
	flows, err := c.Flows(f.route, stale.is)
	for _, flow := range flows {
		err = errors.Join(err, c.Forget(flow))
	}
	return errors.Join(err, c.Close())
}

// staleFlow are the conversations that have to end.
type staleFlow struct {
	ports      []Port
	containers []netip.Prefix
	host       map[netip.Addr]bool
}

func (s staleFlow) is(f conntrack.Flow) bool {
	if f.Protocol != unix.IPPROTO_UDP {
		return false
	}
	if p, ok := published(s.ports, "udp", f.Asked); ok && (s.host[f.Asked.Addr()] || f.Asked.Addr().IsLoopback()) {
		return f.Answering != p.target()
	}
	isAnswering := func(p netip.Prefix) bool { return p.Contains(f.Answering.Addr()) }
	return f.Answering != f.Asked && slices.ContainsFunc(s.containers, isAnswering)
}
