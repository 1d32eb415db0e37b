package network

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	subnetBits    = 24 // of the subnets that Choose gives away
	minSubnetBits = 16
	maxSubnetBits = 29 // five replicas

	defaultMTU = 1500
)

// DefaultPools are private ranges in corners that few sites use.
func DefaultPools() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("172.29.0.0/16"),
		netip.MustParsePrefix("10.213.0.0/16"),
		netip.MustParsePrefix("192.168.192.0/18"),
	}
}

func checkPools(pools []netip.Prefix) error {
	for _, p := range pools {
		if !p.IsValid() || !p.Addr().Is4() || p.Bits() < 8 || p.Bits() > maxSubnetBits {
			return fmt.Errorf("cannot take subnets from %s: not an IPv4 prefix between /8 and /%d", p, maxSubnetBits)
		}
	}
	return nil
}

// Choose picks a subnet for a new network: the first one of the pools that
// overlaps neither with taken nor with what the host routes or owns. It
// changes nothing, and picks the same again once the network's bridge is there.
func (n *Networks) Choose(project, name string, taken []netip.Prefix) (Network, error) {
	w := Network{Project: project, Name: name, Bridge: linkName(bridgePrefix, project, name)}
	used, err := hostPrefixes(w.Bridge)
	if err == nil {
		for _, a := range n.nameservers() {
			used = append(used, netip.PrefixFrom(a, a.BitLen()))
		}
		w.Subnet, err = freeSubnet(n.pools, append(used, taken...))
	}
	if err != nil {
		return Network{}, fmt.Errorf("cannot choose a subnet for network %q of project %q: %w", name, project, err)
	}
	w.Gateway = w.Subnet.Addr().Next()
	return w, nil
}

func freeSubnet(pools, used []netip.Prefix) (netip.Prefix, error) {
	for _, pool := range pools {
		bits := max(subnetBits, pool.Bits())
		for addr := pool.Masked().Addr(); pool.Contains(addr); {
			subnet := netip.PrefixFrom(addr, bits)
			obstacle, blocked := overlapping(subnet, used)
			if !blocked {
				return subnet, nil
			}
			// Whatever is in the way may be much larger than one subnet.
			end := lastAddr(subnet)
			if obstacle.Bits() < bits {
				end = lastAddr(obstacle)
			}
			addr = end.Next()
		}
	}
	return netip.Prefix{}, errors.New("no subnet of the pools is free")
}

func overlapping(subnet netip.Prefix, used []netip.Prefix) (netip.Prefix, bool) {
	for _, u := range used {
		if u.Overlaps(subnet) {
			return u.Masked(), true
		}
	}
	return netip.Prefix{}, false
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(b)
}

// NextAddress is the lowest address of the network that is neither taken nor
// the gateway's.
func NextAddress(net Network, taken []netip.Addr) (netip.Addr, error) {
	if err := net.check(); err != nil {
		return netip.Addr{}, fmt.Errorf("cannot choose an address: %w", err)
	}
	used := map[netip.Addr]bool{net.Gateway: true}
	for _, a := range taken {
		used[a] = true
	}
	broadcast := lastAddr(net.Subnet)
	for addr := net.Subnet.Addr().Next(); addr != broadcast; addr = addr.Next() {
		if !used[addr] {
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("cannot choose an address: network %q of project %q has no free one in %s", net.Name, net.Project, net.Subnet)
}

// hostPrefixes are the IPv4 networks that the host has or can route to, save
// those of the link of this name.
func hostPrefixes(except string) ([]netip.Prefix, error) {
	own := 0
	if link, err := findLink(except); err != nil {
		return nil, err
	} else if link != nil {
		own = link.Attrs().Index
	}
	addrs, err := complete(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("cannot list addresses: %w", err)
	}
	routes, err := allRoutes()
	if err != nil {
		return nil, err
	}
	var used []netip.Prefix
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok && a.LinkIndex != own {
			used = append(used, p)
		}
	}
	for _, r := range routes {
		// Prefixes this short, such as 0.0.0.0/1 of a VPN, lead everywhere:
		// they say nothing about who is there.
		if p, ok := prefixOf(r.Dst); ok && r.LinkIndex != own && p.Bits() >= 8 {
			used = append(used, p)
		}
	}
	return used, nil
}

func allRoutes() ([]netlink.Route, error) {
	routes, err := complete(func() ([]netlink.Route, error) {
		every := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		return netlink.RouteListFiltered(netlink.FAMILY_V4, every, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list routes: %w", err)
	}
	return routes, nil
}

// complete repeats a list that changed while the kernel was writing it.
func complete[T any](list func() ([]T, error)) ([]T, error) {
	for attempt := 1; ; attempt++ {
		items, err := list()
		if attempt == 5 || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return items, err
		}
	}
}

// uplinkMTU is the MTU of the link that leads out, for a packet from a
// container should never be too large for the way that it takes.
func uplinkMTU() (int, error) {
	routes, err := allRoutes()
	if err != nil {
		return 0, err
	}
	best, mtu := -1, defaultMTU
	for _, r := range routes {
		isDefault := r.Dst == nil || r.Dst.IP.IsUnspecified()
		if !isDefault || r.Table != unix.RT_TABLE_MAIN || (best >= 0 && r.Priority >= best) {
			continue
		}
		link, err := netlink.LinkByIndex(r.LinkIndex)
		if err != nil {
			continue // gone since, or a route of several links
		}
		if m := link.Attrs().MTU; m >= 576 && m <= 65535 {
			best, mtu = r.Priority, m
		}
	}
	return mtu, nil
}
