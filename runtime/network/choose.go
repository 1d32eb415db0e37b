package network

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
)

const (
	subnetBits  = 24 // of the subnets that Choose picks
	subnetBits6 = 64

	minMTU6 = 1280
)

// Few sites use these private IPv4 ranges.
func privatePools() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("172.29.0.0/16"),
		netip.MustParsePrefix("10.213.0.0/16"),
		netip.MustParsePrefix("192.168.192.0/18"),
	}
}

// machinePool is the machine's own private IPv6 range (RFC 4193), derived from its ID. Machines
// without one share a range, which does no harm behind masquerading.
func machinePool() netip.Prefix {
	id, _ := os.ReadFile("/etc/machine-id")
	sum := sha256.Sum256(append([]byte("margolite "), bytes.TrimSpace(id)...))
	b := [16]byte{0: 0xfd}
	copy(b[1:6], sum[:])
	return netip.PrefixFrom(netip.AddrFrom16(b), 48)
}

// Choose completes a network that has a name: it picks subnets and gateways, for IPv6 too if
// ipv6 is set. It keeps a subnet that is set, and fails if that overlaps with taken or, on
// a bridge, with what the host routes or owns. Otherwise it picks the first of the pools
// that overlaps with nothing. It changes nothing on the host, and picks the same again once
// the network's bridge exists. A macvlan or ipvlan without a parent would connect its
// replicas with each other only, so it becomes an internal bridge.
func (n *Networks) Choose(w Network, ipv6 bool, taken []netip.Prefix) (Network, error) {
	if w.Bridge == "" {
		w.Bridge = n.owner.bridgeName(w.Name)
	}
	if !w.isBridge() && w.Parent == "" {
		w.Driver, w.Mode, w.Internal = "", "", true
	}
	err := n.choose(&w, ipv6, taken)
	if err == nil && w.Subnet6.IsValid() && w.MTU != 0 && w.MTU < minMTU6 {
		err = fmt.Errorf("IPv6 needs an MTU of at least %d, not %d", minMTU6, w.MTU)
	}
	if err != nil {
		return Network{}, fmt.Errorf("cannot choose a subnet for network %s: %w", w.Name, err)
	}
	return w, nil
}

func (n *Networks) choose(w *Network, v6 bool, taken []netip.Prefix) error {
	var err error
	if !w.NoIPv4 || w.Subnet.IsValid() {
		if w.Subnet, err = n.chooseSubnet(ipv4(), *w, taken); err != nil {
			return err
		}
		if !w.Gateway.IsValid() && w.isBridge() {
			w.Gateway = firstAddr(w.Subnet)
		}
	}
	if v6 || w.Subnet6.IsValid() {
		if w.Subnet6, err = n.chooseSubnet(ipv6(), *w, taken); err != nil {
			return err
		}
		if !w.Gateway6.IsValid() && w.isBridge() {
			w.Gateway6 = firstAddr(w.Subnet6)
		}
	}
	return nil
}

func firstAddr(p netip.Prefix) netip.Addr { return p.Masked().Addr().Next() }

func (n *Networks) chooseSubnet(f *family, w Network, taken []netip.Prefix) (netip.Prefix, error) {
	used := slices.DeleteFunc(slices.Clone(taken), func(p netip.Prefix) bool { return !p.IsValid() })
	if set := f.subnet(w); set.IsValid() {
		if other, ok := overlapping(set, used); ok {
			return netip.Prefix{}, fmt.Errorf("subnet %s overlaps with %s of another network", set, other)
		}
		if !w.isBridge() {
			return set, nil // it is the parent's
		}
		used, err := f.hostPrefixes(w.Bridge, []netip.Prefix{set})
		if err != nil {
			return netip.Prefix{}, err
		}
		if other, ok := overlapping(set, used); ok {
			return netip.Prefix{}, fmt.Errorf("subnet %s overlaps with %s, which this device routes", set, other)
		}
		return set, nil
	}
	pools := slices.DeleteFunc(slices.Clone(n.pools), func(p netip.Prefix) bool { return !f.has(p.Addr()) })
	host, err := f.hostPrefixes(w.Bridge, pools)
	if err != nil {
		return netip.Prefix{}, err
	}
	for _, a := range n.resolver().nameservers {
		used = append(used, netip.PrefixFrom(a, a.BitLen()))
	}
	return freeSubnet(pools, append(used, host...))
}

func freeSubnet(pools, used []netip.Prefix) (netip.Prefix, error) {
	for _, pool := range pools {
		bits := max(subnetBits, pool.Bits())
		if pool.Addr().Is6() {
			bits = max(subnetBits6, pool.Bits())
		}
		for addr := pool.Masked().Addr(); pool.Contains(addr); {
			subnet := netip.PrefixFrom(addr, bits)
			obstacle, blocked := overlapping(subnet, used)
			if !blocked {
				return subnet, nil
			}
			// The obstacle may be much larger than one subnet.
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
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(b); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// NextAddress returns the lowest address of the network within the given prefix that is
// neither taken nor the gateway's. The zero prefix means the IPv4 subnet, or the IPv6
// subnet if there is no other.
func NextAddress(w Network, within netip.Prefix, taken []netip.Addr) (netip.Addr, error) {
	subnet, gateway := w.Subnet, w.Gateway
	if !subnet.IsValid() || within.Addr().Is6() {
		subnet, gateway = w.Subnet6, w.Gateway6
	}
	if !within.IsValid() {
		within = subnet
	}
	within = within.Masked()
	if !subnet.IsValid() || !subnet.Contains(within.Addr()) || within.Bits() < subnet.Bits() {
		return netip.Addr{}, fmt.Errorf("cannot choose an address: %s is not within network %s", within, w.Name)
	}
	used := map[netip.Addr]bool{gateway: true, subnet.Addr(): true, lastAddr(subnet): true}
	for _, a := range taken {
		used[a] = true
	}
	for addr := within.Addr(); within.Contains(addr); addr = addr.Next() {
		if !used[addr] {
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("cannot choose an address: network %s has none left in %s", w.Name, within)
}

// hostPrefixes returns what the host has or routes near these, except on the link except.
func (f *family) hostPrefixes(except string, near []netip.Prefix) (used []netip.Prefix, err error) {
	isNear := func(p netip.Prefix) bool { return slices.ContainsFunc(near, p.Overlaps) }
	err = surveyed(func(at *survey) error {
		own := 0
		if link := at.links[except]; link != nil {
			own = link.Attrs().Index
		}
		addrs, err := addresses(at.c, f.route)
		if err != nil {
			return err
		}
		routes, err := allRoutes(at.c, f, func(r netlink.Route) bool {
			// Prefixes this short, such as 0.0.0.0/1 of a VPN, do not tell which addresses are in use.
			to := prefixOf(r.Dst)
			return r.LinkIndex != own && to.Bits() >= 8 && isNear(to)
		})
		for _, a := range addrs {
			if p := prefixOf(a.IPNet); a.LinkIndex != own && isNear(p) {
				used = append(used, p)
			}
		}
		for _, r := range routes {
			used = append(used, prefixOf(r.Dst))
		}
		return err
	})
	return used, err
}
