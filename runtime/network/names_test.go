package network

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/margolite/margolite/test/expect"
)

func TestLinkNames(t *testing.T) {
	o := ownerOf("/var/lib/margolite")
	bridge := o.bridgeName("shop_default")
	expect.Equal(t, bridge, o.bridgeName("shop_default"), "name of the same network")
	expect.True(t, len(bridge) <= 15, "%s is too long for a link", bridge)
	expect.Equal(t, bridge == o.bridgeName("shop_back"), false, "two networks have one name")
	for name, ours := range map[string]bool{
		bridge: true, "mgl-": false, "mgl-0123456789g": false, "mgl-0123456789A": false,
		"mgl-0123456789abc": false, "mgv-0123456789a": false, "br-0123456789ab": false, "": false,
	} {
		expect.Equal(t, isLinkName(bridgePrefix, name), ours, "%q is a link of ours", name)
	}
}

// A mark fits, however long the name of a network is, and says nothing else.
func TestALongNameIsMarked(t *testing.T) {
	o := ownerOf("/" + strings.Repeat("d", 4000))
	name := strings.Repeat("n", 200) + " @00000000 /elsewhere"
	mark := o.mark(name)
	network, by := readMark(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Alias: mark}})
	if len(mark) > 255 || network != marked(name) || by != o || marked(name+"x") == network {
		t.Errorf("%q is read as %q of %+v", mark, network, by)
	}
}

func TestReplicasWithLongNamesHaveFilesOfTheirOwn(t *testing.T) {
	long := Sandbox{Project: strings.Repeat("p", 128), Service: strings.Repeat("s", 128), Number: 1}
	next := long
	next.Number = 2
	if len(long.file()) > maxFileName || long.file() == next.file() {
		t.Errorf("their files are %s and %s", long.file(), next.file())
	}
}

// A Compose file does not know the subnets of another project's network.
func TestAddressesAreThoseOfTheirNetwork(t *testing.T) {
	gateway := netip.MustParseAddr("172.29.0.1")
	w := Network{Name: "shop_default", Subnet: netip.MustParsePrefix("172.29.0.0/24"), Gateway: gateway}
	for name, a := range map[string]Attachment{
		"":                               {Network: w, Address: gateway.Next()},
		"an address of another subnet":   {Network: w, Address: netip.MustParseAddr("172.30.0.2")},
		"the address of the gateway":     {Network: w, Address: gateway},
		"an IPv6 address without subnet": {Network: w, Address6: netip.MustParseAddr("fd00::2")},
	} {
		expect.Equal(t, a.check() == nil, name == "", "valid: %s", name)
	}
}
