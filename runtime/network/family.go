package network

import (
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// family is what differs between IPv4 and IPv6.
type family struct {
	table               nftables.TableFamily
	route               int                  // in routes, addresses and connections
	address             nftables.SetDatatype // in sets
	size                uint32               // of an address, in bytes
	source, destination uint32               // offset in the header
	loopback            netip.Prefix         // never leaves the host
	unspecified         netip.Addr           // every address, for listeners
	faraway             netip.Addr           // one that no site has, from the range for benchmarks
	subnet              func(Network) netip.Prefix
	gateway             func(Network) netip.Addr
	sysctl              string // below /proc/sys
	forwarding          string // the switch of the whole host
	forwards            string // the setting that makes a link forward where the host does not
	kept                string // the file in RunDir with the former settings
}

func ipv4() *family {
	return &family{
		table: nftables.TableFamilyIPv4, route: unix.AF_INET,
		address: nftables.TypeIPAddr, size: net.IPv4len, source: 12, destination: 16,
		loopback:    netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8),
		unspecified: netip.IPv4Unspecified(),
		faraway:     netip.AddrFrom4([4]byte{198, 18, 0, 1}),
		subnet:      func(w Network) netip.Prefix { return w.Subnet },
		gateway:     func(w Network) netip.Addr { return w.Gateway },
		sysctl:      "net/ipv4",
		forwarding:  "net/ipv4/ip_forward",
		forwards:    "forwarding",
		kept:        "forwarding",
	}
}

func ipv6() *family {
	return &family{
		table: nftables.TableFamilyIPv6, route: unix.AF_INET6,
		address: nftables.TypeIP6Addr, size: net.IPv6len, source: 8, destination: 24,
		loopback:    netip.PrefixFrom(netip.IPv6Loopback(), 128),
		unspecified: netip.IPv6Unspecified(),
		faraway:     netip.AddrFrom16([16]byte{0x20, 0x01, 0, 2, 15: 1}),
		subnet:      func(w Network) netip.Prefix { return w.Subnet6 },
		gateway:     func(w Network) netip.Addr { return w.Gateway6 },
		sysctl:      "net/ipv6",
		forwarding:  "net/ipv6/conf/all/forwarding",
		forwards:    "force_forwarding",
		kept:        "forwarding6",
	}
}

func families() []*family { return []*family{ipv4(), ipv6()} }

func (f *family) has(a netip.Addr) bool {
	return a.IsValid() && a.Is4() == (f.size == net.IPv4len)
}

// of returns the networks that have addresses of the family and rules of ours.
func (f *family) of(networks []Network) []Network {
	return slices.DeleteFunc(slices.Clone(networks), func(w Network) bool { return !w.isBridge() || !f.subnet(w).IsValid() })
}
