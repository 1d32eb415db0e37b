package network

import (
	"net/netip"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

func prefixes(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func TestFreeSubnet(t *testing.T) {
	pools := prefixes("172.29.0.0/16", "10.213.0.0/16")
	for _, c := range []struct {
		name        string
		pools, used []netip.Prefix
		want        string // "" for none
	}{
		{"the first one where nothing is used", pools, nil, "172.29.0.0/24"},
		{"the next one after a used subnet", pools, prefixes("172.29.0.0/24", "172.29.1.0/24"), "172.29.2.0/24"},
		{"a gap between used subnets", pools, prefixes("172.29.0.0/24", "172.29.2.0/24"), "172.29.1.0/24"},
		{"around a single host", pools, prefixes("172.29.0.77/32"), "172.29.1.0/24"},
		{"an address with its prefix stands for the whole of it", pools, prefixes("172.29.0.77/20"), "172.29.16.0/24"},
		{"the next pool where a route covers the first", pools, prefixes("172.16.0.0/12"), "10.213.0.0/24"},
		{"a pool that is smaller than a subnet", prefixes("192.0.2.128/26"), nil, "192.0.2.128/26"},
		{"a pool given by an address inside of it", prefixes("172.29.5.9/16"), nil, "172.29.0.0/24"},
		{"the end of the address space", prefixes("255.255.255.0/24"), prefixes("255.255.255.0/24"), ""},
		{"none where everything is used", pools, prefixes("10.0.0.0/8", "172.16.0.0/12"), ""},
		{"IPv6 is not in the way", pools, prefixes("fd00::/8"), "172.29.0.0/24"},
		{"an IPv6 subnet", prefixes("fd00:1:2::/48"), prefixes("fd00:1:2::/64", "fd00:1:2:1::7/128"), "fd00:1:2:2::/64"},
		{"an IPv6 pool that is smaller than a subnet", prefixes("fd00:1:2::/80"), nil, "fd00:1:2::/80"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := freeSubnet(c.pools, c.used)
			if (err != nil) != (c.want == "") || err == nil && got.String() != c.want {
				t.Fatalf("got %s, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestNextAddress(t *testing.T) {
	small := Network{
		Bridge: bridgePrefix + "00000000000",
		Subnet: netip.MustParsePrefix("192.0.2.8/29"), Gateway: netip.MustParseAddr("192.0.2.9"),
	}
	var taken []netip.Addr
	for _, want := range []string{"192.0.2.10", "192.0.2.11", "192.0.2.12", "192.0.2.13", "192.0.2.14"} {
		got := expect.Value(NextAddress(small, netip.Prefix{}, taken))(t)
		expect.Equal(t, got.String(), want, "next address")
		taken = append(taken, got)
	}
	expect.ErrorWith(t, expect.ErrorOf(NextAddress(small, netip.Prefix{}, taken)), "", "an address of a full network")
	expect.Equal(t, expect.Value(NextAddress(small, netip.Prefix{}, taken[1:]))(t), taken[0], "address that is free again")
	expect.ErrorWith(t, expect.ErrorOf(NextAddress(Network{}, netip.Prefix{}, nil)), "", "an address of no network")
}
