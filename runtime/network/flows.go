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
func (o owner) purgeFlows(f *family, ports []Port, containers []netip.Prefix) error {
	stale := staleFlow{ports: ports, containers: containers, host: make(map[netip.Addr]bool)}
	err := withLinks(func(c *rtnetlink.Conn) error {
		addrs, err := c.Addresses(f.route)
		if err != nil {
			return err
		}
		links, err := c.Links()
		for _, a := range addrs {
			stale.host[a.Prefix.Addr()] = true
			if slices.ContainsFunc(links, func(l rtnetlink.Link) bool { return l.Index == a.Link && o.isOthers(l) }) {
				stale.others = append(stale.others, a.Prefix.Masked())
			}
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
	others     []netip.Prefix // where containers of other owners are
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
	return f.Answering != f.Asked && !slices.ContainsFunc(s.others, isAnswering) && slices.ContainsFunc(s.containers, isAnswering)
}
