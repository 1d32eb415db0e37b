package network_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/test/expect"
)

// linksOf are the links in a sandbox with their global addresses, as
// eth0=172.29.0.2/24.
func linksOf(t testing.TB, netns string) []string {
	t.Helper()
	var found []string
	inside(t, netns, func() {
		for _, link := range expect.Value(net.Interfaces())(t) {
			for _, a := range expect.Value(link.Addrs())(t) {
				ip := a.(*net.IPNet).IP
				if link.Flags&net.FlagLoopback == 0 && !(ip.To4() == nil && ip.IsLinkLocalUnicast()) {
					found = append(found, link.Name+"="+a.String())
				}
			}
		}
	})
	return found
}

func expectLinks(t testing.TB, netns string, want ...string) {
	t.Helper()
	expect.Equal(t, linksOf(t, netns), want, "links")
}

func TestReplicaOnTwoNetworksReachesBoth(t *testing.T) {
	w := newTown(t)
	w.publish(port(w.web, "tcp", 8080, 80))
	serve(t, w.dbNS, "tcp", ":80", "db")
	serve(t, w.appNS, "tcp", ":80", "app")
	serve(t, w.outside, "tcp", ":80", "outside")
	both := replica(w.shop, "both", 7)
	both.Attached = append(both.Attached, attachment(w.other, 7))
	ns := w.sandbox(both)
	serve(t, ns, "tcp", ":80", "both")

	answers(t, ns, "tcp", at(w.db.Address(), 80), "db "+both.Attached[0].Address.String())
	answers(t, ns, "tcp", at(w.app.Address(), 80), "app "+both.Attached[1].Address.String())
	answers(t, ns, "tcp", at(outsideAddr, 80), "outside "+hostAddr)
	answers(t, w.dbNS, "tcp", at(both.Attached[0].Address, 80), "both "+w.db.Address().String())
	answers(t, w.appNS, "tcp", at(both.Attached[1].Address, 80), "both "+w.app.Address().String())
	// It is no bridge between the two.
	silent(t, w.dbNS, "tcp", at(w.app.Address(), 80))
	hosts := text(t, w.Paths(both).Hosts)
	for _, a := range both.Attached {
		expect.Contains(t, hosts, a.Address.String()+"\tboth\n", "hosts file")
	}
}

// A service gets networks and loses them while its container runs: what stays
// is not touched.
func TestLinksComeAndGoInPlace(t *testing.T) {
	w := newTown(t)
	w.publish()
	s := replica(w.shop, "both", 7)
	ns := w.sandbox(s)
	echo(t, ns, ":81")
	conn := dial(t, w.dbNS, "tcp4", at(s.Address(), 81))
	first, second := s.Attached[0], attachment(w.other, 7)
	third := network.Attachment{}
	for _, c := range []struct {
		name     string
		attached []network.Attachment
		want     []string
	}{
		{"a second network", []network.Attachment{first, second}, []string{"eth0=" + first.Address.String() + "/24", "eth1=" + second.Address.String() + "/24"}},
		{"the same in another order", []network.Attachment{second, first}, []string{"eth0=" + first.Address.String() + "/24", "eth1=" + second.Address.String() + "/24"}},
		{"the second one no longer", []network.Attachment{first}, []string{"eth0=" + first.Address.String() + "/24"}},
		{"the second one under a name", []network.Attachment{first, func() network.Attachment { third = second; third.Interface = "field0"; return third }()}, []string{"eth0=" + first.Address.String() + "/24", "field0=" + second.Address.String() + "/24"}},
	} {
		s.Attached = c.attached
		for range 2 {
			w.sandbox(s)
		}
		expectLinks(t, ns, c.want...)
		expect.Equal(t, exchange(conn, "?", patience), "?", "%s: conversation over the first network", c.name)
	}
	s.Attached = nil
	w.sandbox(s)
	expectLinks(t, ns)
	expect.Check(t, w.RemoveSandbox(t.Context(), s))
	for _, trace := range w.traces() {
		expect.Equal(t, strings.Contains(trace, "both"), false, "left behind: %s", trace)
	}
}

func TestLinkIsAsItWasAskedFor(t *testing.T) {
	w := newTown(t)
	w.publish()
	s := replica(w.shop, "special", 7)
	a := &s.Attached[0]
	a.MAC, a.Interface = "02:42:ac:11:00:07", "field0"
	a.Further = []netip.Addr{netip.MustParseAddr("169.254.8.8"), netip.MustParseAddr("fe80::8")}
	a.Sysctls = []string{"net.ipv4.conf.IFNAME.log_martians=1"}
	ns := w.sandbox(s)
	expectLinks(t, ns, "field0="+s.Address().String()+"/24", "field0=169.254.8.8/16")
	inside(t, ns, func() {
		link := expect.Value(net.InterfaceByName("field0"))(t)
		expect.Equal(t, link.HardwareAddr.String(), a.MAC, "the MAC address")
		expect.Equal(t, sysctl(t, "net/ipv4/conf/field0/log_martians"), "1", "log_martians")
		addrs := expect.Value(link.Addrs())(t)
		if !slices.ContainsFunc(addrs, func(a net.Addr) bool { return a.String() == "fe80::8/64" }) {
			t.Errorf("fe80::8 is not among %v", addrs)
		}
	})
}

// A container that is allowed to change its network keeps what it made.
func TestLinksOfTheContainerAreItsOwn(t *testing.T) {
	w := newTown(t)
	inside(t, w.webNS, func() {
		ip(t, "link add vpn0 type veth peer name vpn1")
		linkUp(t, "vpn1")
		address(t, "vpn0", "10.99.0.1/24")
		ip(t, "route replace default dev vpn0")
	})
	w.sandbox(w.web)
	expectLinks(t, w.webNS, "eth0="+w.web.Address().String()+"/24", "vpn0=10.99.0.1/24")
	inside(t, w.webNS, func() {
		expect.Contains(t, ip(t, "route get 192.0.2.1"), "dev vpn0", "way out")
	})
}

func TestSandboxWithoutNetworksHasTheLoopback(t *testing.T) {
	l := newLab(t)
	s := network.Sandbox{Project: "shop", Service: "alone", Number: 1, Hostname: "alone"}
	ns := l.sandbox(s)
	serve(t, ns, "tcp", "127.0.0.1:80", "alone")
	answers(t, ns, "tcp", "127.0.0.1:80", "alone 127.0.0.1")
	expectLinks(t, ns)
	expect.Contains(t, text(t, l.Paths(s).Hosts), "127.0.1.1\talone\n", "hosts file")
}

// Both files of the device may be links to what comes after the container, and is
// replaced as a whole.
func TestSandboxOnTheHostsNetworkHasItsFiles(t *testing.T) {
	l := newLab(t)
	dir := t.TempDir()
	hosts, resolvConf := filepath.Join(dir, "hosts"), filepath.Join(dir, "resolv.conf")
	expect.Check(t, os.Symlink("run/resolve/hosts", hosts))
	expect.Check(t, os.Symlink("run/resolve/resolv.conf", resolvConf))
	n := expect.Value(network.New(network.Options{RunDir: l.runDir, Hosts: hosts, ResolvConf: resolvConf}))(t)
	s := network.Sandbox{
		Project: "shop", Service: "agent", Number: 1, Host: true, Hostname: "gateway",
		Extra: []network.Host{{Address: netip.MustParseAddr("192.0.2.7"), Names: []string{"plc"}}},
	}
	expect.Check(t, n.EnsureSandbox(t.Context(), s, nil))
	paths := n.Paths(s)
	expect.Equal(t, paths.NetNS, "", "network namespace")
	for i, replace := range []func(){
		func() {},
		func() {
			expect.Check(t, os.Rename(filepath.Join(dir, "run", "resolve"), filepath.Join(dir, "run", "old")))
		},
		func() {
			expect.Check(t, os.Rename(filepath.Join(dir, "run"), filepath.Join(dir, "other")))
			expect.Check(t, os.Symlink("other", filepath.Join(dir, "run")))
			expect.Check(t, os.Remove(resolvConf))
			expect.Check(t, os.Symlink("other/resolve/resolv.conf", resolvConf))
		},
	} {
		replace()
		resolver := fmt.Sprintf("nameserver 127.0.0.%d\noptions edns0\n", i+1)
		names := fmt.Sprintf("127.0.0.1 localhost\n192.0.2.%d historian # of the plant\n", i+1)
		expect.Check(t, os.MkdirAll(filepath.Join(dir, "run", "resolve"), 0o755))
		expect.Check(t, os.WriteFile(filepath.Join(dir, "run", "resolve", "resolv.conf"), []byte(resolver), 0o600))
		expect.Check(t, os.WriteFile(filepath.Join(dir, "run", "resolve", "hosts"), []byte(names), 0o600))
		n.RefreshFiles()
		expect.Eventually(t, "the container has the files of the device", func() bool {
			return text(t, paths.ResolvConf) == resolver && text(t, paths.Hosts) == "192.0.2.7\tplc\n"+names
		})
	}
	expect.Equal(t, text(t, paths.Hostname), "gateway\n", "hostname")
	s.DNS = []netip.Addr{netip.MustParseAddr("192.0.2.53")}
	expect.Check(t, n.EnsureSandbox(t.Context(), s, nil))
	expect.Equal(t, text(t, paths.ResolvConf), "nameserver 192.0.2.53\noptions edns0\n", "resolv.conf")
	expect.Check(t, n.Leftovers(t.Context(), []network.Sandbox{s}, nil))
	expect.OK(t, expect.ErrorOf(os.Stat(paths.Hosts)))
	expect.Check(t, n.RemoveSandbox(t.Context(), s))
	expect.Equal(t, l.traces(), nil, "left behind")
}

func TestInternalNetworkHasNoWayOut(t *testing.T) {
	w := newTown(t)
	vault := w.networkOf(network.Network{Name: "shop_vault", Internal: true}, false, w.shop.Subnet, w.other.Subnet)
	w.networks = append(w.networks, vault)
	a, b := replica(vault, "a", 1), replica(vault, "b", 2)
	aNS, bNS := w.sandbox(a), w.sandbox(b)
	w.publish(port(a, "tcp", 8081, 80), port(w.web, "tcp", 8080, 80))
	serve(t, aNS, "tcp", ":80", "a")
	serve(t, w.webNS, "tcp", ":80", "web")
	serve(t, w.outside, "tcp", ":80", "outside")
	serve(t, "", "tcp", vault.Gateway.String()+":90", "host")

	answers(t, bNS, "tcp", at(a.Address(), 80), "a "+b.Address().String())
	answers(t, bNS, "tcp", at(vault.Gateway, 90), "host "+b.Address().String())
	// Also for one that knows the way.
	inside(t, bNS, func() { ip(t, "route replace default via %s", vault.Gateway) })
	silent(t, bNS, "tcp", at(outsideAddr, 80))
	silent(t, bNS, "tcp", at(w.web.Address(), 80))
	silent(t, bNS, "tcp", at(hostAddr, 8080))
	silent(t, w.webNS, "tcp", at(a.Address(), 80))
	silent(t, w.outside, "tcp", at(hostAddr, 8081))

	inside(t, aNS, func() {
		expect.Equal(t, ip(t, "route show default"), "", "default route")
	})
	// The default route of a replica on both leads by the other one.
	both := replica(vault, "both", 7)
	both.Attached = append(both.Attached, attachment(w.shop, 7))
	answers(t, w.sandbox(both), "tcp", at(outsideAddr, 80), "outside "+hostAddr)
}

func TestApartNetworkKeepsItsReplicasApart(t *testing.T) {
	for name, bridgeNetfilter := range bridgeNetfilters() {
		t.Run(name, func(t *testing.T) {
			w := newTown(t)
			bridgeNetfilter(t)
			cells := w.networkOf(network.Network{Name: "shop_cells", Apart: true}, false, w.shop.Subnet, w.other.Subnet)
			w.networks = append(w.networks, cells)
			a, b := replica(cells, "a", 1), replica(cells, "b", 2)
			aNS, bNS := w.sandbox(a), w.sandbox(b)
			w.publish(port(a, "tcp", 8081, 80))
			serve(t, aNS, "tcp", ":80", "a")
			serve(t, w.outside, "tcp", ":80", "outside")
			silent(t, bNS, "tcp", at(a.Address(), 80))
			// Also not by the host, for one that takes the neighbour for far away.
			inside(t, bNS, func() { ip(t, "route replace %s/32 via %s", a.Address(), cells.Gateway) })
			silent(t, bNS, "tcp", at(a.Address(), 80))
			answers(t, bNS, "tcp", at(outsideAddr, 80), "outside "+hostAddr)
			answers(t, w.outside, "tcp", at(hostAddr, 8081), "a "+outsideAddr)
		})
	}
}

func TestUnmaskedNetworkShowsItsAddresses(t *testing.T) {
	w := newTown(t)
	plain := w.networkOf(network.Network{Name: "shop_plain", Unmasked: true, MTU: 1300}, false, w.shop.Subnet, w.other.Subnet)
	w.networks = append(w.networks, plain)
	w.publish()
	a := replica(plain, "a", 1)
	ns := w.sandbox(a)
	inside(t, w.outside, func() { ip(t, "route replace %s via %s", plain.Subnet, hostAddr) })
	serve(t, w.outside, "tcp", ":80", "outside")
	answers(t, ns, "tcp", at(outsideAddr, 80), "outside "+a.Address().String())
	inside(t, ns, func() {
		expect.Equal(t, expect.Value(net.InterfaceByName("eth0"))(t).MTU, 1300, "MTU")
	})
}

func TestMacvlanIsOnTheNetworkOfItsParent(t *testing.T) {
	w := newTown(t)
	lan := network.Network{
		Name: "shop_lan", Driver: "macvlan", Parent: uplink,
		Subnet: netip.MustParsePrefix("203.0.113.0/24"), Gateway: netip.MustParseAddr(outsideAddr),
	}
	lan = w.networkOf(lan, false, w.shop.Subnet, w.other.Subnet)
	a := replica(w.shop, "a", 7)
	a.Attached = []network.Attachment{{Network: lan, Address: netip.MustParseAddr("203.0.113.77")}, a.Attached[0]}
	w.networks = append(w.networks, lan)
	w.publish()
	ns := w.sandbox(a)
	serve(t, ns, "tcp", ":80", "a")
	serve(t, w.dbNS, "tcp", ":80", "db")
	answers(t, w.outside, "tcp", at("203.0.113.77", 80), "a "+outsideAddr)
	answers(t, ns, "tcp", at(w.db.Address(), 80), "db *")
	index := func() (index int) {
		inside(t, ns, func() { index = linkIndex(t, "eth0") })
		return index
	}
	before := index()
	w.sandbox(a)
	expect.Equal(t, index(), before, "index of the link after repeating")
	// Removed from a namespace in which a process may still be.
	held := expect.Value(os.Open(ns))(t)
	defer held.Close()
	expect.Check(t, w.RemoveSandbox(t.Context(), a))
	silent(t, w.outside, "tcp", at("203.0.113.77", 80))
	expect.Check(t, w.RemoveNetwork(t.Context(), lan))
	linkIndex(t, uplink) // is still there

	for name, bad := range map[string]network.Network{
		"a parent that is not there": {Name: "x", Driver: "macvlan", Parent: "none0", Subnet: lan.Subnet},
		"a VLAN of one that is not":  {Name: "x", Driver: "macvlan", Parent: "none0.7", Subnet: lan.Subnet},
		"a VLAN that cannot be":      {Name: "x", Driver: "macvlan", Parent: uplink + ".4095", Subnet: lan.Subnet},
	} {
		chosen, err := w.Choose(bad, false, nil)
		if err == nil {
			err = w.EnsureNetwork(t.Context(), chosen)
		}
		expect.True(t, err != nil, "%s: accepted", name)
	}
}

// A container that may change its network damages what is its own.
func TestDamageToLinksOfAContainerIsRepaired(t *testing.T) {
	commands := func(all ...string) func(t *testing.T) {
		return func(t *testing.T) {
			for _, command := range all {
				ip(t, "%s", command)
			}
		}
	}
	for name, damage := range map[string]func(t *testing.T){
		"the first link removed":  commands("link del eth0"),
		"the second link removed": commands("link del eth1"),
		"all links removed":       commands("link del eth0", "link del eth1", "link del eth2"),
		"a link renamed":          commands("link set eth0 down", "link set eth0 name other0"),
		"a link renamed, and another in its place": commands("link set eth0 down", "link set eth0 name other0",
			"link add eth0 type veth peer name other1"),
		"a link down, without address and with another MAC": commands("link set eth0 address 02:00:00:00:00:09",
			"address flush dev eth0", "link set eth0 down"),
		"another address beside the right one":  commands("address add 192.0.2.7/24 dev eth0"),
		"another address with a peer":           commands("address add 192.0.2.7 peer 192.0.2.9/32 dev eth0"),
		"the loopback down":                     commands("link set lo down"),
		"IPv6 switched off":                     func(t *testing.T) { setSysctl(t, "net/ipv6/conf/all/disable_ipv6", "1") },
		"default routes removed":                commands("-4 route del default", "-6 route del default"),
		"default route by another link of ours": commands("route replace default via 172.29.1.1 dev eth1"),
		"macvlan with another mark":             commands("link set eth2 alias other"),
	} {
		t.Run(name, func(t *testing.T) {
			w := newDualStack(t, network.Network{})
			lan := w.networkOf(network.Network{Name: "shop_lan", Driver: "macvlan", Parent: uplink, Subnet: netip.MustParsePrefix("203.0.113.0/24")}, false)
			s := replica(w.shop, "all", 7)
			s.Attached = append(s.Attached, attachment(w.other, 7), network.Attachment{Network: lan, Address: netip.MustParseAddr("203.0.113.77")})
			ns := w.sandbox(s)
			w.publish()
			before := linksOf(t, ns)
			expect.Require(t, len(before) == 5, "links are %q", before)
			inside(t, ns, func() { damage(t) })
			w.sandbox(s)
			after := linksOf(t, ns)
			slices.Sort(before)
			slices.Sort(after)
			expect.Equal(t, before, after, "links")
			serve(t, w.dbNS, "tcp", "[::]:80", "db")
			serve(t, w.outside, "tcp", "[::]:80", "outside")
			serve(t, ns, "tcp", "127.0.0.1:80", "all")
			answers(t, ns, "tcp", "127.0.0.1:80", "all *")
			answers(t, ns, "tcp", at(w.db.Address(), 80), "db *")
			answers(t, ns, "tcp", at(w.db.Attached[0].Address6, 80), "db *")
			answers(t, ns, "tcp", at(outsideAddr6, 80), "outside *")
		})
	}
}

// supports says whether the kernel can make such links.
func supports(t testing.TB, kind string) bool {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields("link add link "+uplink+" name probe type "+kind)...).CombinedOutput()
	if err == nil {
		ip(t, "link del probe")
		return true
	}
	if !strings.Contains(string(out), "Unknown device type") && !strings.Contains(string(out), "not supported") {
		t.Fatalf("%v: %s", err, out)
	}
	return false
}

func TestVLANIsMadeForItsNetwork(t *testing.T) {
	w := newTown(t)
	if !supports(t, "vlan id 5") {
		t.Skip("the kernel has no VLANs")
	}
	lan := expect.Value(w.Choose(network.Network{Name: "shop_lan", Driver: "macvlan", Parent: uplink + ".100", Subnet: netip.MustParsePrefix("192.0.2.0/24")}, false, nil))(t)
	for range 2 {
		expect.Check(t, w.EnsureNetwork(t.Context(), lan))
	}
	other := lan
	if other.Name = "other_lan"; w.EnsureNetwork(t.Context(), other) == nil {
		t.Error("two networks have one VLAN")
	}
	expect.Check(t, w.Leftovers(t.Context(), w.sandboxes, append(w.networks, lan)))
	linkIndex(t, lan.Parent)
	expect.Check(t, w.Leftovers(t.Context(), w.sandboxes, w.networks))
	expect.ErrorWith(t, expect.ErrorOf(net.InterfaceByName(lan.Parent)), "", "the VLAN")
}

func TestIPvlanIsOnTheNetworkOfItsParent(t *testing.T) {
	w := newTown(t)
	if !supports(t, "ipvlan mode l2") {
		t.Skip("the kernel has no ipvlan")
	}
	lan := w.networkOf(network.Network{Name: "shop_lan", Driver: "ipvlan", Parent: uplink, Subnet: netip.MustParsePrefix("203.0.113.0/24")}, false)
	a := replica(w.shop, "a", 7)
	a.Attached = []network.Attachment{{Network: lan, Address: netip.MustParseAddr("203.0.113.77")}}
	serve(t, w.sandbox(a), "tcp", ":80", "a")
	answers(t, w.outside, "tcp", at("203.0.113.77", 80), "a "+outsideAddr)
}

// dualStack is a town whose project shop has IPv6, and whose host has it on its
// uplink.
const (
	hostAddr6    = "2001:db8:1::2"
	outsideAddr6 = "2001:db8:1::1"
)

// connect6 gives IPv6 to both ends of what connect made.
func (l *lab) connect6(name, netns, ours, theirs string) {
	l.t.Helper()
	address6 := func(link, prefix string) {
		setSysctl(l.t, "net/ipv6/conf/"+link+"/accept_dad", "0")
		address(l.t, link, prefix)
	}
	address6(name, ours+"/64")
	inside(l.t, netns, func() {
		address6("eth0", theirs+"/64")
		ip(l.t, "-6 route replace default via %s", ours)
	})
}

func newDualStack(t testing.TB, shop network.Network) *town {
	t.Helper()
	l := newLab(t)
	l.connect6(uplink, l.outside, hostAddr6, outsideAddr6)
	setSysctl(t, "net/ipv6/conf/all/forwarding", "0")
	return settleAs(l, shop, true)
}

func port6(s network.Sandbox, protocol string, host, container uint16) network.Port {
	return network.Port{Protocol: protocol, HostPort: host, ContainerPort: container, Address: s.Attached[0].Address6}
}

func TestIPv6ReachesAsIPv4Does(t *testing.T) {
	for name, shop := range map[string]network.Network{
		"beside IPv4":  {},
		"without IPv4": {NoIPv4: true},
		"given":        {Subnet6: netip.MustParsePrefix("2001:db8:7::/64"), Gateway6: netip.MustParseAddr("2001:db8:7::ff")},
	} {
		t.Run(name, func(t *testing.T) {
			w := newDualStack(t, shop)
			w.publish(port6(w.web, "tcp", 8080, 80), port6(w.web, "udp", 8080, 80))
			serve(t, w.webNS, "tcp", "[::]:80", "web")
			serve(t, w.webNS, "udp", "[::]:80", "web")
			serve(t, w.outside, "tcp", "[::]:80", "outside")
			web, db, app := w.web.Attached[0], w.db.Attached[0], w.app.Attached[0]
			for _, protocol := range []string{"tcp", "udp"} {
				answers(t, w.outside, protocol, at(hostAddr6, 8080), "web "+outsideAddr6)
				answers(t, "", protocol, at(hostAddr6, 8080), "web *")
				answers(t, w.dbNS, protocol, at(hostAddr6, 8080), "web "+w.shop.Gateway6.String())
				answers(t, w.webNS, protocol, at(hostAddr6, 8080), "web "+w.shop.Gateway6.String())
				answers(t, w.appNS, protocol, at(hostAddr6, 8080), "web "+app.Address6.String())
				answers(t, w.dbNS, protocol, at(web.Address6, 80), "web "+db.Address6.String())
				silent(t, w.appNS, protocol, at(web.Address6, 80))
			}
			answers(t, w.webNS, "tcp", at(outsideAddr6, 80), "outside "+hostAddr6)
			answers(t, w.webNS, "tcp", "[::1]:80", "web ::1")
			inside(t, w.outside, func() { ip(t, "route replace %s via %s", w.shop.Subnet6, hostAddr6) })
			silent(t, w.outside, "tcp", at(web.Address6, 80))
			expect.Equal(t, web.Address.IsValid(), !shop.NoIPv4, "it has an IPv4 address")
			// Repeating changes nothing, and in the end nothing is left.
			before := generation(t)
			w.publish(port6(w.web, "tcp", 8080, 80), port6(w.web, "udp", 8080, 80))
			expect.Equal(t, generation(t), before, "generation of nf_tables after repeating")
			w.clear()
			expect.Equal(t, w.traces(), nil, "left behind")
			expect.Equal(t, sysctl(t, "net/ipv6/conf/all/forwarding"), "0", "IPv6 forwarding without networks")
		})
	}
}

func TestPublishedPortsAreGuardedInIPv6Too(t *testing.T) {
	w := newDualStack(t, network.Network{})
	t.Cleanup(func() { nft(t, "flush ruleset") })
	rules := `
flush ruleset
table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
		meta l4proto ipv6-icmp accept
		ct state established,related accept
		iif "lo" accept
		meta l4proto { tcp, udp } th dport 8080 accept
	}
}`
	nft(t, rules)
	w.publish(port6(w.web, "tcp", 8080, 80), port6(w.web, "udp", 8080, 80), port6(w.web, "tcp", 8081, 80), port6(w.web, "udp", 8081, 80))
	for _, protocol := range []string{"udp", "tcp"} {
		serve(t, w.webNS, protocol, "[::]:80", "web")
		expect.Equal(t, ask(t, w.outside, protocol, at(hostAddr6, 8080), silence), "web "+outsideAddr6, "%s", protocol)
		silent(t, w.outside, protocol, at(hostAddr6, 8081))
	}
}

func TestIPv6IsOffWhereItIsNotWanted(t *testing.T) {
	w := newDualStack(t, network.Network{})
	plain := w.networkOf(network.Network{Name: "shop_plain"}, false, w.shop.Subnet, w.other.Subnet)
	w.web.Attached = append(w.web.Attached, attachment(plain, 1))
	w.web.Attached[1].Address6 = netip.Addr{}
	w.sandbox(w.web)
	for key, want := range map[string]string{"eth0": "0", "eth1": "1"} {
		inside(t, w.webNS, func() {
			expect.Equal(t, sysctl(t, "net/ipv6/conf/"+key+"/disable_ipv6"), want, "disable_ipv6 of %s", key)
		})
	}
	expect.Equal(t, sysctl(t, "net/ipv6/conf/"+plain.Bridge+"/disable_ipv6"), "1", "disable_ipv6 of the bridge")
}

// SCTP has no sockets here; the first packet of a connection tells enough.
func TestSCTPPortIsPublished(t *testing.T) {
	w := newTown(t)
	w.publish(port(w.web, "sctp", 8080, 80))
	arrived := make(chan []byte, 10)
	inside(t, w.webNS, func() {
		conn := expect.Value(net.ListenIP("ip4:132", nil))(t)
		t.Cleanup(func() { conn.Close() })
		go func() {
			buf := make([]byte, 1500)
			for {
				n, _, err := conn.ReadFrom(buf)
				if err != nil {
					return
				}
				arrived <- slices.Clone(buf[:n])
			}
		}()
	})
	inside(t, w.outside, func() {
		conn := expect.Value(net.DialIP("ip4:132", nil, &net.IPAddr{IP: net.ParseIP(hostAddr)}))(t)
		defer conn.Close()
		packet := []byte{
			0x90, 0x01, 0x1f, 0x90, 0, 0, 0, 0, 0, 0, 0, 0, // 36865 to 8080
			1, 0, 0, 20, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, // INIT
		}
		binary.LittleEndian.PutUint32(packet[8:], crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli)))
		expect.Value(conn.Write(packet))(t)
	})
	packet := expect.Receive(t, "the packet arrives", arrived)
	expect.Equal(t, binary.BigEndian.Uint16(packet[2:]), 80, "port of the packet")
}

func TestFreePortIsOneThatCanBePublished(t *testing.T) {
	l := newLab(t)
	listener := expect.Value(net.Listen("tcp4", "127.0.0.1:50001"))(t)
	defer listener.Close()
	taken := []network.Port{published("tcp", "", 50000, "172.29.0.2")}
	free := func(protocol, ip string, from, to uint16) (uint16, error) {
		var hostIP netip.Addr
		if ip != "" {
			hostIP = netip.MustParseAddr(ip)
		}
		return l.FreePort(protocol, hostIP, from, to, taken)
	}
	for _, c := range []struct {
		name, protocol, ip string
		from, to, want     uint16
	}{
		{"after those that others have", "tcp", "", 50000, 50010, 50002},
		{"beside one on another address", "tcp", "127.0.0.2", 50001, 50001, 50001},
		{"of another protocol", "udp", "", 50000, 50010, 50000},
		{"of a protocol that nobody listens with", "sctp", "", 50001, 50001, 50001},
		{"that nobody chose", "tcp", "", 0, 0, 49153},
	} {
		expect.Equal(t, expect.Value(free(c.protocol, c.ip, c.from, c.to))(t), c.want, "%s", c.name)
	}
	expect.Error(t, expect.ErrorOf(free("tcp", "", 50000, 50001)), network.ErrPortInUse, "range that is taken")
	expect.Error(t, expect.ErrorOf(free("tcp", "192.0.2.99", 50000, 50001)), network.ErrAddressMissing, "address that the host has not")
}

func TestConflictNamesWhoHasThePort(t *testing.T) {
	l := newLab(t)
	conflict := func(protocol string, address net.Addr) {
		t.Helper()
		wanted := published(protocol, "", netip.MustParseAddrPort(address.String()).Port(), "172.29.0.2")
		expect.ErrorWith(t, l.CheckPort(wanted, nil), "(process ", "%s", address)
	}
	for _, address := range []string{"127.0.0.1:0", "[::]:0"} {
		listener := expect.Value(net.Listen("tcp", address))(t)
		defer listener.Close()
		conflict("tcp", listener.Addr())
		conn := expect.Value(net.ListenPacket("udp", address))(t)
		defer conn.Close()
		conflict("udp", conn.LocalAddr())
	}
}

func TestChoiceIsKept(t *testing.T) {
	l := newLab(t)
	address(t, uplink, "172.20.0.9/16")
	prefix := netip.MustParsePrefix
	taken := []netip.Prefix{prefix("172.30.0.0/24"), prefix("fd11::/64")}
	for _, c := range []struct {
		name   string
		wanted network.Network
		bad    string
	}{
		{"a subnet", network.Network{Subnet: prefix("172.31.0.0/16")}, ""},
		{"a subnet with its gateway", network.Network{Subnet: prefix("172.31.0.0/16"), Gateway: netip.MustParseAddr("172.31.255.254")}, ""},
		{"both families", network.Network{Subnet: prefix("172.31.0.0/16"), Subnet6: prefix("fd12::/64")}, ""},
		{"an IPv6 subnet alone", network.Network{NoIPv4: true, Subnet6: prefix("fd12::/64")}, ""},
		{"a subnet of another network", network.Network{Subnet: prefix("172.30.0.0/16")}, "another network"},
		{"an IPv6 subnet of another network", network.Network{Subnet6: prefix("fd11::/48")}, "another network"},
		{"a subnet of the host", network.Network{Subnet: prefix("172.20.3.0/24")}, "this device routes"},
		{"the subnet of a parent", network.Network{Driver: "macvlan", Parent: uplink, Subnet: prefix("172.20.0.0/16")}, ""},
		{"an MTU that IPv6 cannot have", network.Network{Subnet: prefix("172.31.0.0/16"), Subnet6: prefix("fd12::/64"), MTU: 1279}, "1280"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.wanted.Name = "shop_default"
			got, err := l.Choose(c.wanted, c.wanted.Subnet6.IsValid(), taken)
			if c.bad != "" {
				expect.ErrorWith(t, err, c.bad, "error")
				return
			}
			expect.Check(t, err)
			if c.wanted.Subnet.IsValid() && got.Subnet != c.wanted.Subnet || c.wanted.Subnet6.IsValid() && got.Subnet6 != c.wanted.Subnet6 ||
				c.wanted.Gateway.IsValid() && got.Gateway != c.wanted.Gateway || got.Subnet.IsValid() == c.wanted.NoIPv4 {
				t.Errorf("got %+v", got)
			}
		})
	}
	// Without a parent the replicas have each other and nobody else.
	alone := expect.Value(l.Choose(network.Network{Name: "shop_alone", Driver: "macvlan", Mode: "private"}, false, nil))(t)
	expect.True(t, alone.Driver == "" && alone.Mode == "" && alone.Internal, "got %+v", alone)
	within := network.Network{Name: "x_y", Subnet: prefix("172.31.0.0/16"), Subnet6: prefix("fd12::/64")}
	within = expect.Value(l.Choose(within, true, nil))(t)
	for _, c := range []struct{ within, want string }{
		{"172.31.5.0/24", "172.31.5.0"}, {"172.31.0.0/24", "172.31.0.2"}, {"fd12::/64", "fd12::2"}, {"fd12::ff00/120", "fd12::ff00"},
	} {
		expect.Equal(t, expect.Value(network.NextAddress(within, prefix(c.within), nil))(t).String(), c.want, "within %s", c.within)
	}
	expect.ErrorWith(t, expect.ErrorOf(network.NextAddress(within, prefix("10.0.0.0/8"), nil)), "", "an address elsewhere")
}

// A container may make the lists of its namespace as long as it likes: they are
// read as far as they matter, and what is too much is the matter of that sandbox.
func TestCrowdedNamespaceIsAnErrorOfItsOwn(t *testing.T) {
	w := newTown(t)
	var routes, addresses strings.Builder
	for i := range network.MaxListed/0x100 + 1 { // the kernel takes long over many addresses of one link
		fmt.Fprintf(&addresses, "link add many%d type bridge\n", i)
		for k := range 0x100 {
			fmt.Fprintf(&routes, "route add unreachable 11.0.%d.%d\n", i, k)
			fmt.Fprintf(&addresses, "address add 11.1.%d.%d/32 dev many%d\n", i, k, i)
		}
	}
	crowd := func(commands string) error {
		inside(t, w.webNS, func() {
			many := exec.Command("ip", "-batch", "-")
			many.Stdin = strings.NewReader(commands)
			if out, err := many.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		})
		return w.EnsureSandbox(t.Context(), w.web, nil)
	}
	expect.Check(t, crowd(routes.String()))
	expect.ErrorWith(t, crowd(addresses.String()), "more than", "sandbox with too many addresses")
	w.sandbox(w.db)
	expect.Check(t, w.RemoveSandbox(t.Context(), w.web))
}
