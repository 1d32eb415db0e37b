package network

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestLinkNames(t *testing.T) {
	o := ownerOf("/var/lib/margolite")
	bridge := o.bridgeName("shop_default")
	if bridge != o.bridgeName("shop_default") {
		t.Error("the same network has two names")
	}
	if len(bridge) > 15 {
		t.Errorf("%s is too long for a link", bridge)
	}
	if bridge == o.bridgeName("shop_back") {
		t.Error("two networks have one name")
	}
	for name, ours := range map[string]bool{
		bridge: true, "mgl-": false, "mgl-0123456789g": false, "mgl-0123456789A": false,
		"mgl-0123456789abc": false, "mgv-0123456789a": false, "br-0123456789ab": false, "": false,
	} {
		if isLinkName(bridgePrefix, name) != ours {
			t.Errorf("%q: want %t", name, ours)
		}
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

func TestSandboxNames(t *testing.T) {
	w := Network{Bridge: ownerOf("/").bridgeName("shop_default"), Subnet: netip.MustParsePrefix("172.29.0.0/24"), Gateway: netip.MustParseAddr("172.29.0.1")}
	good := Sandbox{Project: "shop", Service: "web.front_1-a", Number: 1, Attached: []Attachment{{Network: w, Address: netip.MustParseAddr("172.29.0.2")}}}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	long := Sandbox{Project: strings.Repeat("p", 128), Service: strings.Repeat("s", 128), Number: 1}
	next := long
	next.Number = 2
	if long.check() != nil || len(long.file()) > maxFileName || long.file() == next.file() {
		t.Errorf("replicas with long names have files %s and %s", long.file(), next.file())
	}
	for name, spoil := range map[string]func(s *Sandbox){
		"project that leads upwards":     func(s *Sandbox) { s.Project = ".." },
		"project with a slash":           func(s *Sandbox) { s.Project = "a/b" },
		"service without a name":         func(s *Sandbox) { s.Service = "" },
		"service with the separator":     func(s *Sandbox) { s.Service = "a+b" },
		"negative number":                func(s *Sandbox) { s.Number = -1 },
		"address of another subnet":      func(s *Sandbox) { s.Attached[0].Address = netip.MustParseAddr("172.30.0.2") },
		"address of the gateway":         func(s *Sandbox) { s.Attached[0].Address = s.Attached[0].Network.Gateway },
		"no address":                     func(s *Sandbox) { s.Attached[0].Address = netip.Addr{} },
		"MAC of a group":                 func(s *Sandbox) { s.Attached[0].MAC = "01:00:00:00:00:00" },
		"MAC too short":                  func(s *Sandbox) { s.Attached[0].MAC = "02" },
		"bridge of somebody else":        func(s *Sandbox) { s.Attached[0].Network.Bridge = "docker0" },
		"gateway outside of the subnet":  func(s *Sandbox) { s.Attached[0].Network.Gateway = netip.MustParseAddr("10.0.0.1") },
		"subnet that is not a subnet":    func(s *Sandbox) { s.Attached[0].Network.Subnet = netip.MustParsePrefix("172.29.0.1/24") },
		"subnet too large":               func(s *Sandbox) { s.Attached[0].Network.Subnet = netip.MustParsePrefix("128.0.0.0/1") },
		"subnet of another kind":         func(s *Sandbox) { s.Attached[0].Network.Subnet = netip.MustParsePrefix("fd00::/64") },
		"IPv6 address without subnet":    func(s *Sandbox) { s.Attached[0].Address6 = netip.MustParseAddr("fd00::2") },
		"further address that is global": func(s *Sandbox) { s.Attached[0].Further = []netip.Addr{netip.MustParseAddr("10.0.0.2")} },
		"interface with a path":          func(s *Sandbox) { s.Attached[0].Interface = "../x" },
		"interface of the loopback":      func(s *Sandbox) { s.Attached[0].Interface = "lo" },
		"setting of another link":        func(s *Sandbox) { s.Attached[0].Sysctls = []string{"net.ipv4.conf.eth0.forwarding=1"} },
		"setting of the namespace":       func(s *Sandbox) { s.Attached[0].Sysctls = []string{"net.ipv4.ip_forward=1"} },
		"setting that leads upwards":     func(s *Sandbox) { s.Attached[0].Sysctls = []string{"net.ipv4.conf.IFNAME./../x=1"} },
		"the same network twice":         func(s *Sandbox) { s.Attached = append(s.Attached, s.Attached[0]) },
		"networks beside the host's":     func(s *Sandbox) { s.Host = true },
		"driver that is not there":       func(s *Sandbox) { s.Attached[0].Network.Driver = "overlay" },
		"MTU that is none":               func(s *Sandbox) { s.Attached[0].Network.MTU = 60 },
		"no network":                     func(s *Sandbox) { s.Attached[0].Network = Network{} },
	} {
		t.Run(name, func(t *testing.T) {
			s := good
			s.Attached = slices.Clone(s.Attached)
			spoil(&s)
			if s.check() == nil {
				t.Error("accepted")
			}
		})
	}
}
