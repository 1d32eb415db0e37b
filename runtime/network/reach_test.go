package network_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/test/expect"
)

// town is a lab with two projects: shop with web and db, and other with app.
type town struct {
	*lab
	shop, other        network.Network
	web, db, app       network.Sandbox
	webNS, dbNS, appNS string
	sandboxes          []network.Sandbox
	networks           []network.Network
}

func newTown(t testing.TB) *town {
	t.Helper()
	return settle(newLab(t))
}

func settle(l *lab) *town { return settleAs(l, network.Network{}, false) }

// settleAs is settle with a network of this kind for shop.
func settleAs(l *lab, shop network.Network, ipv6 bool) *town {
	l.t.Helper()
	shop.Name = "shop_default"
	w := &town{lab: l, shop: l.networkOf(shop, ipv6), other: l.networkOf(network.Network{Name: "other_default"}, ipv6)}
	w.web, w.db, w.app = replica(w.shop, "web", 1), replica(w.shop, "db", 2), replica(w.other, "app", 1)
	w.webNS, w.dbNS, w.appNS = l.sandbox(w.web), l.sandbox(w.db), l.sandbox(w.app)
	w.networks = []network.Network{w.shop, w.other}
	w.sandboxes = []network.Sandbox{w.web, w.db, w.app}
	return w
}

func (w *town) publish(ports ...network.Port) {
	w.t.Helper()
	expect.Check(w.t, w.SyncPorts(w.ctx, ports, w.networks))
}

// bridgeNetfilters are the two ways in which the kernel may treat what stays
// on a bridge: passing it by the rules, or not.
func bridgeNetfilters() map[string]func(t *testing.T) {
	set := func(value string) func(t *testing.T) {
		return func(t *testing.T) {
			const key = "net/bridge/bridge-nf-call-iptables"
			if _, err := os.Stat("/proc/sys/" + key); err != nil {
				if value == "1" {
					t.Skip("the kernel has no bridge netfilter")
				}
				return
			}
			setSysctl(t, key, value)
			t.Cleanup(func() { setSysctl(t, key, "0") })
		}
	}
	return map[string]func(t *testing.T){"without bridge netfilter": set("0"), "with bridge netfilter": set("1")}
}

func TestPublishedPortIsReachedFromEverywhere(t *testing.T) {
	for name, bridgeNetfilter := range bridgeNetfilters() {
		t.Run(name, func(t *testing.T) {
			w := newTown(t)
			bridgeNetfilter(t)
			w.publish(port(w.web, "tcp", 8080, 80), port(w.web, "udp", 8080, 80))
			serve(t, w.webNS, "tcp", ":80", "web")
			serve(t, w.webNS, "udp", ":80", "web")

			gateway := w.shop.Gateway.String()
			for _, c := range []struct {
				name, from, to, seenAs string
			}{
				{"by the host through the loopback", "", "127.0.0.1", gateway},
				{"by the host through its own address", "", hostAddr, hostAddr},
				{"by the host through the gateway's address", "", gateway, gateway},
				{"by another host, seen by its own address", w.outside, hostAddr, outsideAddr},
				{"by the container itself", w.webNS, hostAddr, gateway},
				{"by the container itself through the gateway", w.webNS, gateway, gateway},
				{"by a container of the same project", w.dbNS, hostAddr, gateway},
				{"by a container of another project", w.appNS, hostAddr, w.app.Address().String()},
				{"by a container of another project through its gateway", w.appNS, w.other.Gateway.String(), w.app.Address().String()},
			} {
				for _, protocol := range []string{"tcp", "udp"} {
					t.Run(c.name+" over "+protocol, func(t *testing.T) {
						answers(t, c.from, protocol, at(c.to, 8080), "web "+c.seenAs)
					})
				}
			}
			silent(t, w.outside, "tcp", at(hostAddr, 80))
		})
	}
}

func TestContainersAreIsolated(t *testing.T) {
	for name, bridgeNetfilter := range bridgeNetfilters() {
		t.Run(name, func(t *testing.T) {
			w := newTown(t)
			bridgeNetfilter(t)
			w.publish()
			serve(t, w.webNS, "tcp", ":80", "web")
			serve(t, w.webNS, "udp", ":80", "web")
			// Somebody on another host who knows the address and the way.
			inside(t, w.outside, func() { ip(t, "route replace %s via %s", w.shop.Subnet, hostAddr) })
			for _, protocol := range []string{"tcp", "udp"} {
				answers(t, w.dbNS, protocol, at(w.web.Address(), 80), "web "+w.db.Address().String())
				answers(t, "", protocol, at(w.web.Address(), 80), "web *")
				silent(t, w.appNS, protocol, at(w.web.Address(), 80))
				silent(t, w.outside, protocol, at(w.web.Address(), 80))
			}
		})
	}
}

func TestPortPublishedOnOneAddressIsReachedThereOnly(t *testing.T) {
	w := newTown(t)
	address(t, uplink, "203.0.113.3/24")
	p := port(w.web, "tcp", 8080, 80)
	p.HostIP = netip.MustParseAddr("203.0.113.3")
	w.publish(p)
	serve(t, w.webNS, "tcp", ":80", "web")
	answers(t, w.outside, "tcp", at(p.HostIP, 8080), "web "+outsideAddr)
	answers(t, w.appNS, "tcp", at(p.HostIP, 8080), "web *")
	silent(t, w.outside, "tcp", at(hostAddr, 8080))
	silent(t, "", "tcp", at("127.0.0.1", 8080))
}

// Packets for 127.0.0.1 do not belong on a wire, but nothing keeps a neighbour
// from sending them.
func TestLoopbackOfTheHostIsOutOfReach(t *testing.T) {
	w := newTown(t)
	p := port(w.web, "tcp", 8080, 80)
	p.HostIP = netip.MustParseAddr("127.0.0.1")
	w.publish(p)
	serve(t, w.webNS, "tcp", ":80", "web")
	serve(t, "", "tcp", "127.0.0.1:9000", "secret")
	answers(t, "", "tcp", "127.0.0.1:8080", "web *")

	for name, c := range map[string]struct{ netns, via string }{
		"for a neighbour":     {w.outside, hostAddr},
		"for a container":     {w.webNS, w.shop.Gateway.String()},
		"for another project": {w.appNS, w.other.Gateway.String()},
	} {
		t.Run(name, func(t *testing.T) {
			inside(t, c.netns, func() {
				// The sender's own loopback has to be out of the way.
				ip(t, "address del 127.0.0.1/8 dev lo")
				setSysctl(t, "net/ipv4/conf/eth0/route_localnet", "1")
				ip(t, "route replace 127.0.0.1/32 via %s", c.via)
			})
			silent(t, c.netns, "tcp", "127.0.0.1:9000")
			silent(t, c.netns, "tcp", "127.0.0.1:8080")
		})
	}
}

// The host of a plant that does not forward stays so for everything but
// containers, also to a modem or a VLAN that comes later.
func TestForwardingIsSwitchedOnForContainersOnly(t *testing.T) {
	w := newDualStack(t, network.Network{})
	t.Cleanup(func() { nft(t, "flush ruleset") })
	connect := func(name string, n int) (netns string) {
		netns = newNamespace(t)
		w.connect(name, netns, fmt.Sprintf("198.51.%d.2", n), fmt.Sprintf("198.51.%d.1", n))
		w.connect6(name, netns, fmt.Sprintf("2001:db8:%d::2", n), fmt.Sprintf("2001:db8:%d::1", n))
		serve(t, netns, "tcp", ":80", name)
		return netns
	}
	plant := connect("up1", 100)
	serve(t, w.webNS, "tcp", ":80", "web")
	// A host that forwards listens to routers no longer, unless it is told to.
	const router = "net/ipv6/conf/" + uplink + "/accept_ra"
	setSysctl(t, router, "1")
	w.publish(port(w.web, "tcp", 8080, 80), port6(w.web, "tcp", 8080, 80))
	forwarding := func(want, listens string) {
		t.Helper()
		for key, want := range map[string]string{"net/ipv4/ip_forward": want, "net/ipv6/conf/all/forwarding": want, router: listens} {
			expect.Equal(t, sysctl(t, key), want, "%s", key)
		}
	}
	forwarding("1", "2")
	modem := connect("wwan0", 101)
	apart := func() {
		t.Helper()
		for _, from := range []string{w.outside, plant, modem} {
			for n, netns := range map[int]string{100: plant, 101: modem} {
				if from != netns {
					silent(t, from, "tcp", at(fmt.Sprintf("198.51.%d.1", n), 80))
					silent(t, from, "tcp", at(fmt.Sprintf("2001:db8:%d::1", n), 80))
				}
			}
		}
	}
	apart()
	for n, netns := range map[int]string{100: plant, 101: modem} {
		answers(t, netns, "tcp", at(fmt.Sprintf("198.51.%d.2", n), 8080), "web *")
		answers(t, netns, "tcp", at(fmt.Sprintf("2001:db8:%d::2", n), 8080), "web *")
		answers(t, w.webNS, "tcp", at(fmt.Sprintf("198.51.%d.1", n), 80), "*")
	}

	nft(t, "flush ruleset")
	w.publish()
	apart()
	// The next agent finds forwarding on, and still knows; also where somebody
	// emptied its directory before.
	for _, name := range []string{"forwarding", "forwarding6"} {
		expect.Check(t, os.Remove(filepath.Join(w.runDir, name)))
	}
	w.publish()
	w.Networks = expect.Value(network.New(network.Options{RunDir: w.runDir}))(t)
	w.publish()
	apart()
	// With the last network everything is as it was.
	w.clear()
	forwarding("0", "1")
	expect.Equal(t, w.traces(), nil, "left behind")
}

func TestLinksThatForwardedBeforeGoOn(t *testing.T) {
	w := newDualStack(t, network.Network{})
	keys := []string{"net/ipv4/conf/up1/forwarding", "net/ipv4/conf/up2/forwarding", "net/ipv6/conf/up1/force_forwarding", "net/ipv6/conf/up2/force_forwarding"}
	plant, cell := newNamespace(t), newNamespace(t)
	w.connect("up1", plant, "198.51.100.2", "198.51.100.1")
	w.connect("up2", cell, "198.51.101.2", "198.51.101.1")
	w.connect6("up1", plant, "2001:db8:100::2", "2001:db8:100::1")
	w.connect6("up2", cell, "2001:db8:101::2", "2001:db8:101::1")
	serve(t, cell, "tcp", ":80", "cell")
	to := []string{"198.51.101.1"}
	if _, err := os.Stat("/proc/sys/" + keys[2]); err == nil { // since Linux 6.17
		to = append(to, "2001:db8:101::1")
	} else {
		keys = keys[:2]
	}
	for _, key := range keys {
		setSysctl(t, key, "1")
	}
	// What a bridge passes on is not forwarded, though the kernel may filter it.
	ip(t, "link add br0 type bridge")
	t.Cleanup(func() { ip(t, "link del br0") })
	bridgeNetfilters()["with bridge netfilter"](t)
	machines := []string{newNamespace(t), newNamespace(t)}
	for i, machine := range machines {
		name := fmt.Sprintf("lan%d", i)
		w.connect(name, machine, "192.0.2.9", fmt.Sprintf("192.0.2.%d", i+1))
		ip(t, "address flush dev %s", name)
		ip(t, "link set %s master br0", name)
	}
	linkUp(t, "br0")
	serve(t, machines[1], "tcp", ":80", "machine")

	works := func() {
		t.Helper()
		for _, addr := range to {
			answers(t, plant, "tcp", at(addr, 80), "cell *")
			silent(t, w.outside, "tcp", at(addr, 80))
		}
		answers(t, machines[0], "tcp", "192.0.2.2:80", "machine *")
	}
	works()
	w.publish()
	works()
	w.clear()
	works()
}

func TestForwardingThatWasOnStaysOn(t *testing.T) {
	l := newLab(t)
	setSysctl(t, "net/ipv4/ip_forward", "1")
	plant := newNamespace(t)
	l.connect("up1", plant, "198.51.100.2", "198.51.100.1")
	serve(t, plant, "tcp", ":80", "plant")
	w := settle(l)
	w.publish()
	answers(t, w.outside, "tcp", at("198.51.100.1", 80), "plant "+outsideAddr)
}

func TestConversationFollowsThePublishedPort(t *testing.T) {
	for name, rules := range map[string]string{"without a firewall": "", "with a firewall": openwrt()} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			nft(t, rules)
			serve(t, s.dbNS, "udp", ":80", "db")
			s.publish()

			// A sensor that keeps its port and never falls silent.
			sensor := dial(t, s.lan, "udp4", at(hostAddr, 8080))
			say := func(want string) {
				t.Helper()
				wait := patience
				if want == "" {
					wait = silence
				}
				expect.Equal(t, exchange(sensor, "?", wait), want, "answer")
			}
			say("")
			s.publish(port(s.web, "udp", 8080, 80))
			say("web " + outsideAddr)
			s.publish(port(s.db, "udp", 8080, 80))
			say("db " + outsideAddr)
			s.publish()
			say("")
		})
	}
}
