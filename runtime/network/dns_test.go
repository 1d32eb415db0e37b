package network_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/test/expect"
)

const ours = "127.0.0.11"

// names is a lab whose host has this resolv.conf; %s is the other host, which is
// a nameserver.
func names(t *testing.T, resolvConf string) *lab {
	t.Helper()
	l := newLab(t)
	file := filepath.Join(t.TempDir(), "resolv.conf")
	expect.Check(t, os.WriteFile(file, []byte(strings.ReplaceAll(resolvConf, "%s", outsideAddr)), 0o644))
	l.resolvConf = file
	l.Networks = expect.Value(network.New(network.Options{RunDir: l.runDir, ResolvConf: file, Logger: slog.New(slog.DiscardHandler)}))(t)
	nameserver(t, l.outside, outsideAddr, "198.51.100.7")
	return l
}

// serveNames runs Serve until stop.
func (l *lab) serveNames() (stop func()) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.ctx)
	ended := make(chan error, 1)
	go func() { ended <- l.Serve(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			expect.Check(l.t, <-ended)
		}
	}
	l.t.Cleanup(stop)
	return stop
}

// with sets up a sandbox that sees these hosts.
func (l *lab) with(s network.Sandbox, hosts ...network.Host) string {
	l.t.Helper()
	expect.Check(l.t, l.EnsureSandbox(l.ctx, s, hosts))
	return l.Paths(s).NetNS
}

// served is with for a sandbox that is answered.
func (l *lab) served(s network.Sandbox, hosts ...network.Host) (netns string) {
	l.t.Helper()
	netns = l.with(s, hosts...)
	l.answered(netns)
	return netns
}

// answered waits until the sandbox is.
func (l *lab) answered(netns string) {
	l.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		if _, err := query(l.t, netns, "udp", ours, "localhost", dnsmessage.TypeA, 0); err == nil {
			return
		} else if time.Now().After(deadline) {
			l.t.Fatal(err)
		}
	}
}

// nameserver knows ext.example and, with many addresses, big.example. What it is
// asked for over UDP comes in two packets, of which the first is forged.
func nameserver(t *testing.T, netns, at, address string) {
	t.Helper()
	answer := func(query []byte, stream bool) []byte {
		var p dnsmessage.Parser
		header, err := p.Start(query)
		if err != nil {
			return nil
		}
		q, err := p.Question()
		if err != nil {
			return nil
		}
		reply := dnsmessage.Message{
			Header:    dnsmessage.Header{ID: header.ID, Response: true, RecursionAvailable: true},
			Questions: []dnsmessage.Question{q},
		}
		h := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60}
		switch strings.ToLower(q.Name.String()) {
		case "ext.example.", "single.":
			if q.Type == dnsmessage.TypeA {
				reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: netip.MustParseAddr(address).As4()}})
			}
		case "big.example.":
			reply.Truncated = !stream
			for i := range byte(100) {
				if stream {
					reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: [4]byte{198, 51, 100, i}}})
				}
			}
		case "mute.example.":
			return nil
		case "refused.example.":
			reply.RCode = dnsmessage.RCodeRefused
		default:
			reply.RCode = dnsmessage.RCodeNameError
		}
		message, err := reply.Pack()
		if err != nil {
			return nil
		}
		return message
	}
	inside(t, netns, func() {
		answerPackets(t, "udp4", at+":53", func(asked []byte, _ net.Addr, send func([]byte)) {
			if reply := answer(asked, false); reply != nil {
				forged := slices.Clone(reply)
				forged[0]++
				send(forged[:len(forged)-1])
				send(reply)
			}
		})
		accept(t, "tcp4", at+":53", func(conn net.Conn) {
			var size [2]byte
			if _, err := io.ReadFull(conn, size[:]); err == nil {
				message := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(conn, message); err == nil {
					reply := answer(message, true)
					_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
				}
			}
		})
	})
}

// query asks a nameserver from a namespace; edns is how large an answer may be.
func query(t testing.TB, netns, protocol, server, name string, kind dnsmessage.Type, edns int) (dnsmessage.Message, error) {
	t.Helper()
	var reply dnsmessage.Message
	ask := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: kind, Class: dnsmessage.ClassINET}},
	}
	if edns > 0 {
		var h dnsmessage.ResourceHeader
		expect.Check(t, h.SetEDNS0(edns, 0, false))
		ask.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
	}
	message, err := ask.Pack()
	expect.Check(t, err)
	inside(t, netns, func() {
		var conn net.Conn
		if conn, err = net.DialTimeout(protocol+"4", server+":53", patience); err != nil {
			return
		}
		defer conn.Close()
		expect.Check(t, conn.SetDeadline(time.Now().Add(2*patience)))
		answer := make([]byte, 64<<10)
		var n int
		if protocol == "tcp" {
			if _, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)); err != nil {
				return
			}
			if _, err = io.ReadFull(conn, answer[:2]); err == nil {
				n, err = io.ReadFull(conn, answer[:binary.BigEndian.Uint16(answer)])
			}
		} else if _, err = conn.Write(message); err == nil {
			n, err = conn.Read(answer)
		}
		if err == nil {
			err = reply.Unpack(answer[:n])
		}
	})
	if err == nil && (reply.ID != 7 || !reply.Response) {
		t.Errorf("header %+v", reply.Header)
	}
	return reply, err
}

// told is what a reply says, in short.
func told(reply dnsmessage.Message, err error) string {
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, a := range reply.Answers {
		switch body := a.Body.(type) {
		case *dnsmessage.AResource:
			all = append(all, netip.AddrFrom4(body.A).String())
		case *dnsmessage.AAAAResource:
			all = append(all, netip.AddrFrom16(body.AAAA).String())
		case *dnsmessage.PTRResource:
			all = append(all, body.PTR.String())
		}
	}
	slices.Sort(all)
	if reply.RCode != dnsmessage.RCodeSuccess {
		return strings.TrimPrefix(reply.RCode.String(), "RCode")
	}
	return strings.Join(all, " ")
}

func host(addr string, names ...string) network.Host {
	return network.Host{Address: netip.MustParseAddr(addr), Names: names}
}

func TestServeAnswersFromTheHostsFile(t *testing.T) {
	l := names(t, "nameserver %s\nsearch site.example\n")
	w := l.network("shop")
	s := replica(w, "web", 1)
	own := s.Address().String()
	db, far := s.Address().Next().String(), "fd00::5"
	l.serveNames()
	netns := l.served(s, host(db, "db", "Database"), host(far, "db"), host("192.0.2.1", "abroad", "abroad.example.com"), host("192.0.2.2", "gw..example", "opc/1"))
	ptr := func(addr string) string {
		b := netip.MustParseAddr(addr).As4()
		return fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa", b[3], b[2], b[1], b[0])
	}
	for _, c := range []struct {
		name string
		kind dnsmessage.Type
		want string
	}{
		{"web", dnsmessage.TypeA, own},
		{"db", dnsmessage.TypeA, db},
		{"db", dnsmessage.TypeAAAA, far},
		{"DB", dnsmessage.TypeA, db},
		{"database", dnsmessage.TypeA, db},
		{"database", dnsmessage.TypeAAAA, ""},
		{"database", dnsmessage.TypeMX, ""},
		{"abroad.example.com", dnsmessage.TypeA, "192.0.2.1"},
		{"localhost", dnsmessage.TypeA, "127.0.0.1"},
		{"db." + w.Name, dnsmessage.TypeA, db},
		{"abroad." + w.Name, dnsmessage.TypeA, "NameError"},
		{"db.other_default", dnsmessage.TypeA, "NameError"},
		{ptr(db), dnsmessage.TypePTR, "db."},
		{ptr("192.0.2.2"), dnsmessage.TypePTR, ""}, // that name has no form in DNS
		{"opc/1", dnsmessage.TypeA, "192.0.2.2"},
		{ptr(w.Gateway.String()), dnsmessage.TypePTR, "NameError"},
		{ptr("198.51.100.1"), dnsmessage.TypePTR, "NameError"},
		{"5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa", dnsmessage.TypePTR, "db."},
		{"ext.example", dnsmessage.TypeA, "198.51.100.7"},
		{"ext.example", dnsmessage.TypeAAAA, ""},
		{"single", dnsmessage.TypeA, "198.51.100.7"},
		{"nobody.example", dnsmessage.TypeA, "NameError"},
		{"refused.example", dnsmessage.TypeA, "Refused"},
		{"db.site.example", dnsmessage.TypeA, db}, // which nobody on site is called
	} {
		for _, protocol := range []string{"udp", "tcp"} {
			expect.Equal(t, told(query(t, netns, protocol, ours, c.name, c.kind, 0)), c.want, "%s, %s over %s", c.name, c.kind, protocol)
		}
	}
	// The file changes with the project.
	expect.Check(t, l.WriteHosts(s, []network.Host{host(own, "later")}))
	expect.Equal(t, told(query(t, netns, "udp", ours, "later", dnsmessage.TypeA, 0)), own, "new name")
	expect.Equal(t, told(query(t, netns, "udp", ours, "db", dnsmessage.TypeA, 0)), "NameError", "name that is gone")
	// The domain changes with the host's.
	expect.Check(t, os.WriteFile(l.resolvConf, []byte("nameserver "+outsideAddr+"\nsearch line.example\n"), 0o644))
	expect.Equal(t, told(query(t, netns, "udp", ours, "later.line.example", dnsmessage.TypeA, 0)), own, "new name within the search domain")
}

func TestServeManyReplicas(t *testing.T) {
	l := names(t, "nameserver %s\n")
	w := l.network("shop")
	s := replica(w, "web", 1)
	var hosts []network.Host
	addr := s.Address()
	const count = 100
	for i := range count {
		addr = addr.Next()
		hosts = append(hosts, network.Host{Address: addr, Names: []string{"worker", fmt.Sprintf("shop-worker-%d", i+1)}})
	}
	l.serveNames()
	netns := l.served(s, hosts...)
	firsts := make(map[string]bool)
	for range 20 {
		reply := expect.Value(query(t, netns, "udp", ours, "worker", dnsmessage.TypeA, 0))(t)
		if len(reply.Answers) < 20 || !reply.Truncated {
			t.Fatalf("%d addresses in a small packet, truncated: %v", len(reply.Answers), reply.Truncated)
		}
		firsts[fmt.Sprint(reply.Answers[0].Body)] = true
	}
	expect.True(t, len(firsts) >= 20, "%d different addresses came first in 20 answers", len(firsts))
	for protocol, edns := range map[string]int{"udp": 4096, "tcp": 0} {
		reply := expect.Value(query(t, netns, protocol, ours, "worker", dnsmessage.TypeA, edns))(t)
		if len(reply.Answers) != count || reply.Truncated {
			t.Errorf("%d addresses in a large packet over %s, truncated: %v", len(reply.Answers), protocol, reply.Truncated)
		}
	}
	// What comes from elsewhere may be as large.
	expect.Equal(t, expect.Value(query(t, netns, "udp", ours, "big.example", dnsmessage.TypeA, 0))(t).Truncated, true, "truncated")
	expect.Equal(t, len(expect.Value(query(t, netns, "tcp", ours, "big.example", dnsmessage.TypeA, 0))(t).Answers), count, "addresses over TCP")
}

func TestWithoutTheAgentTheNextNameserverIsAsked(t *testing.T) {
	l := names(t, "nameserver 127.0.0.53\nnameserver %s\noptions timeout:1\nsearch site.example\n")
	s := replica(l.network("shop"), "web", 1)
	netns := l.with(s)
	refused := func() {
		t.Helper()
		for _, protocol := range []string{"udp", "tcp"} {
			_, err := query(t, netns, protocol, ours, "ext.example", dnsmessage.TypeA, 0)
			if !errors.Is(err, syscall.ECONNREFUSED) { // which nobody has to wait for
				t.Errorf("%s: %v, want to be refused", protocol, err)
			}
		}
	}
	refused()
	stop := l.serveNames()
	l.answered(netns)
	expect.Equal(t, told(query(t, netns, "udp", ours, "ext.example", dnsmessage.TypeA, 0)), "198.51.100.7", "ext.example")
	stop()
	refused()
	l.serveNames()
	l.answered(netns)
}

// A container may be a nameserver itself, on all its addresses.
func TestServeLeavesPort53ToContainers(t *testing.T) {
	l := names(t, "nameserver %s\n")
	w := l.network("shop")
	a, b := replica(w, "a", 1), replica(w, "b", 2)
	expect.Check(t, l.SyncPorts(l.ctx, nil, []network.Network{w}))
	l.serveNames()
	first := l.served(a)
	nameserver(t, first, "0.0.0.0", "198.51.100.8")
	l.answered(first)

	// Whoever wants that one is told so by its service, and asks it by itself:
	// the host may be unable to reach it. Two that do not answer leave time for it.
	nobody := netip.MustParseAddr("172.29.0.98")
	b.DNS = []netip.Addr{nobody, nobody.Next(), a.Address()}
	second := l.served(b, host("192.0.2.1", "db"))
	for name, want := range map[string]string{"db": "192.0.2.1", "ext.example": "198.51.100.8"} {
		for _, protocol := range []string{"udp", "tcp"} {
			expect.Equal(t, told(query(t, second, protocol, ours, name, dnsmessage.TypeA, 0)), want, "%s over %s", name, protocol)
		}
	}
}

func TestServeIsAsTheServiceIsConnected(t *testing.T) {
	l := names(t, "nameserver %s\nsearch site.example\noptions ndots:3\n")
	w := l.network("shop")
	dotted := replica(w, "dotted", 2)
	dotted.DNSSearch, dotted.DNSOptions = []string{"plant.example"}, []string{"ndots:1", "timeout:2"}
	w.Internal = true
	l.serveNames()
	for _, c := range []struct {
		sandbox network.Sandbox
		want    map[string]string
	}{
		{replica(w, "internal", 1), map[string]string{"db": "192.0.2.1", "ext.example": "ServerFailure"}},
		{dotted, map[string]string{
			"db": "192.0.2.1", "db.plant.example": "192.0.2.1", "db.site.example": "NameError",
			"single": "NameError", // its domain comes next
		}},
	} {
		netns := l.served(c.sandbox, host("192.0.2.1", "db"))
		for name, want := range c.want {
			expect.Equal(t, told(query(t, netns, "udp", ours, name, dnsmessage.TypeA, 0)), want, "%s, %s", c.sandbox.Service, name)
		}
	}
}

// A container that asks for more than there is to be had keeps nobody else from
// asking.
func TestServeBoundsWhatOneSandboxAsks(t *testing.T) {
	l := names(t, "nameserver %s\n")
	w := l.network("shop")
	greedy, modest := replica(w, "greedy", 1), replica(w, "modest", 2)
	l.serveNames()
	first, second := l.served(greedy), l.served(modest)
	var ask dnsmessage.Message
	ask.Questions = []dnsmessage.Question{{Name: dnsmessage.MustNewName("mute.example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}
	message := expect.Value(ask.Pack())(t)
	const most = 100
	failed := 0
	conn := dial(t, first, "udp4", ours+":53")
	for range 200 {
		expect.Value(conn.Write(message))(t)
	}
	expect.Check(t, conn.SetReadDeadline(time.Now().Add(patience)))
	for buffer := make([]byte, 512); failed < most; failed++ { // the rest is mute
		if _, err := conn.Read(buffer); err != nil {
			t.Fatalf("%d queries failed at once, want %d of 200: %v", failed, most, err)
		}
	}
	expect.Equal(t, told(query(t, second, "udp", ours, "ext.example", dnsmessage.TypeA, 0)), "198.51.100.7", "ext.example")
}

// A container that asks as fast as it can is answered at a pace that the device can bear.
func TestServePacesWhatOneSandboxAsks(t *testing.T) {
	l := names(t, "nameserver %s\n")
	s := replica(l.network("shop"), "asking", 1)
	l.serveNames()
	netns := l.served(s, host("192.0.2.1", "db"))
	ask := dnsmessage.Message{Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("db."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	message := expect.Value(ask.Pack())(t)
	const burst, perSecond, most = 1000, 1000, 1500
	begun := time.Now()
	conn := dial(t, netns, "udp4", ours+":53")
	for buffer, answers := make([]byte, 512), 0; answers < most; answers++ {
		expect.Check(t, conn.SetDeadline(time.Now().Add(patience)))
		expect.Value(conn.Write(message))(t)
		expect.Value(conn.Read(buffer))(t)
	}
	if took, least := time.Since(begun), time.Second*(most-burst)/perSecond; took < least*9/10 {
		t.Errorf("%d questions were answered in %v, faster than in %v", most, took, least)
	}
	expect.Equal(t, told(query(t, netns, "tcp", ours, "db", dnsmessage.TypeA, 0)), "192.0.2.1", "after them, over TCP")
}

func TestRemovedSandboxIsNotHeldByItsSockets(t *testing.T) {
	l := names(t, "nameserver %s\n")
	w := l.network("shop")
	l.serveNames()
	s := replica(w, "web", 1)
	l.served(s)
	before := runtime.NumGoroutine()
	for range 3 {
		expect.Check(t, l.RemoveSandbox(l.ctx, s))
		l.served(s) // made anew, and answered anew
	}
	expect.Eventually(t, fmt.Sprintf("there are no more than %d goroutines", before), func() bool { return runtime.NumGoroutine() <= before })
}

// What a sandbox costs, save its hosts file.
func TestServeCostsLittle(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: many sandboxes")
	}
	l := names(t, "nameserver %s\n")
	w := l.network("shop")
	used := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	const count = 60
	var all []string
	for i := range count {
		all = append(all, l.with(replica(w, "web", i+1)))
	}
	before := used()
	l.serveNames()
	for _, netns := range all {
		l.answered(netns)
	}
	each := (used() - before) / count
	t.Logf("%d bytes for each sandbox", each)
	expect.True(t, each <= 30<<10, "%d bytes for each sandbox", each)
}
