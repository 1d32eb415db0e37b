package network_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/test/expect"
)

func published(protocol, hostIP string, host uint16, address string) network.Port {
	p := network.Port{Protocol: protocol, HostPort: host, ContainerPort: 80, Address: netip.MustParseAddr(address)}
	if hostIP != "" {
		p.HostIP = netip.MustParseAddr(hostIP)
	}
	return p
}

func TestPortsOfTheHostAreNotTaken(t *testing.T) {
	l := newLab(t)
	setSysctl(t, "net/ipv4/ip_nonlocal_bind", "0")
	listener := expect.Value(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer listener.Close()
	conn := expect.Value(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	defer conn.Close()
	tcp := uint16(listener.Addr().(*net.TCPAddr).Port)
	udp := uint16(conn.LocalAddr().(*net.UDPAddr).Port)
	free := func() uint16 {
		l := expect.Value(net.Listen("tcp4", "127.0.0.1:0"))(t)
		defer l.Close()
		return uint16(l.Addr().(*net.TCPAddr).Port)
	}()
	const web, db = "172.29.0.2", "172.29.0.3"
	for _, c := range []struct {
		name   string
		wanted network.Port
		others []network.Port
		want   error
	}{
		{"a free port", published("tcp", "", free, web), nil, nil},
		{"a port that a process listens on", published("tcp", "", tcp, web), nil, network.ErrPortInUse},
		{"the same on its address", published("tcp", "127.0.0.1", tcp, web), nil, network.ErrPortInUse},
		{"the same on another address", published("tcp", "127.0.0.2", tcp, web), nil, nil},
		{"a UDP port of a process", published("udp", "", udp, web), nil, network.ErrPortInUse},
		{"an address that the host has not", published("tcp", "192.0.2.99", free, web), nil, network.ErrAddressMissing},
		{"a port of another sandbox", published("tcp", "", free, web), []network.Port{published("tcp", "", free, db)}, network.ErrPortInUse},
		{"a port of another sandbox on one address", published("tcp", "", free, web), []network.Port{published("tcp", "127.0.0.1", free, db)}, network.ErrPortInUse},
		{"the same on different addresses", published("tcp", "127.0.0.1", free, web), []network.Port{published("tcp", "127.0.0.2", free, db)}, nil},
		{"the same over another protocol", published("tcp", "", free, web), []network.Port{published("udp", "", free, db)}, nil},
		{"one's own port", published("tcp", "", free, web), []network.Port{published("tcp", "", free, web)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := l.CheckPort(c.wanted, c.others)
			expect.Error(t, err, c.want, "error")
			if refused := new(network.PortError); err != nil && (!errors.As(err, &refused) || refused.Port != c.wanted) {
				t.Errorf("%v does not name the port", err)
			}
		})
	}
	expect.ErrorWith(t, l.CheckPort(published("dccp", "", free, web), nil), "", "dccp")
}

func TestOfTwoThatWantOnePortTheFirstGetsIt(t *testing.T) {
	w := newTown(t)
	serve(t, w.webNS, "tcp", ":80", "web")
	serve(t, w.dbNS, "tcp", ":80", "db")
	first, second := port(w.web, "tcp", 8080, 80), port(w.db, "tcp", 8080, 80)
	err := w.SyncPorts(t.Context(), []network.Port{first, second, port(w.db, "tcp", 8081, 80)}, w.networks)
	if refused := new(network.PortError); !errors.As(err, &refused) || refused.Port != second || !errors.Is(err, network.ErrPortInUse) {
		t.Errorf("got %v", err)
	}
	answers(t, w.outside, "tcp", at(hostAddr, 8080), "web *")
	answers(t, w.outside, "tcp", at(hostAddr, 8081), "db *")
}

func TestEndedContextChangesNothing(t *testing.T) {
	l := newLab(t)
	w := expect.Value(l.Choose(network.Network{Name: "shop_default"}, false, nil))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{l.EnsureSandbox(ctx, replica(w, "web", 1), nil), l.EnsureNetwork(ctx, w), l.SyncPorts(ctx, nil, []network.Network{w})} {
		expect.Error(t, err, context.Canceled, "error")
	}
	expect.Equal(t, l.traces(), nil, "made")
}

func TestSubnetsKeepAwayFromTheHosts(t *testing.T) {
	l := newLab(t)
	address(t, uplink, "172.29.0.9/24")
	ip(t, "route replace 172.29.1.0/24 via %s", outsideAddr)
	ip(t, "route replace 172.29.2.0/24 via %s table 100", outsideAddr)
	ip(t, "route replace 128.0.0.0/1 via %s", outsideAddr)
	taken := netip.MustParsePrefix("172.29.3.0/24")
	w := expect.Value(l.Choose(network.Network{Name: "shop_default"}, false, []netip.Prefix{taken}))(t)
	if w.Subnet.String() != "172.29.4.0/24" || w.Gateway.String() != "172.29.4.1" || !strings.HasPrefix(w.Bridge, "mgl-") {
		t.Errorf("got %+v", w)
	}
	expect.Check(t, l.EnsureNetwork(t.Context(), w))
	again := expect.Value(l.Choose(network.Network{Name: "shop_default"}, false, []netip.Prefix{taken}))(t)
	expect.Equal(t, again, w, "network that exists already")
	other := expect.Value(l.Choose(network.Network{Name: "other_default"}, false, []netip.Prefix{taken}))(t)
	expect.True(t, !other.Subnet.Overlaps(w.Subnet) && other.Bridge != w.Bridge, "got %+v beside %+v", other, w)
}

func TestThisKernelHasEverything(t *testing.T) {
	requireLab(t)
	for _, p := range network.Check(t.Context()) {
		t.Errorf("%s: %s", p.What, p.Mend)
	}
	expect.Equal(t, hasTable(t, "margolite"), false, "the check left a table on the host")
}

func BenchmarkSyncPorts(b *testing.B) {
	w := newTown(b)
	var lists [2][]network.Port
	for i := range 100 {
		lists[0] = append(lists[0], port(w.web, "tcp", uint16(10000+i), 80))
		lists[1] = append(lists[1], port(w.web, "tcp", uint16(20000+i), 80))
	}
	b.Run("100 ports replaced", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			expect.Check(b, w.SyncPorts(w.ctx, lists[i%2], w.networks))
		}
	})
	unchanged := func(b *testing.B) {
		expect.Check(b, w.SyncPorts(w.ctx, lists[0], w.networks))
		for b.Loop() {
			expect.Check(b, w.SyncPorts(w.ctx, lists[0], w.networks))
		}
	}
	b.Run("100 ports unchanged", unchanged)
	nft(b, openwrt())
	b.Cleanup(func() { nft(b, "flush ruleset") })
	b.Run("100 guarded ports unchanged", unchanged)
}
