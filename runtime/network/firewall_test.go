package network_test

import (
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/test/expect"
)

// nft changes the rules of the lab's host in the words of their authors.
func nft(t testing.TB, rules string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

// Firewalls as they are found on devices. LAN is up0, WAN is up1.
const (
	// As OpenWrt's fw4 makes it of the zones lan and wan.
	fw4 = `
table inet fw4
flush table inet fw4
table inet fw4 {
	chain input {
		type filter hook input priority filter; policy drop;
		iif "lo" accept
		ct state vmap { established : accept, related : accept }
		tcp flags & (fin | syn | rst | ack) == syn jump syn_flood
		iifname "up0" jump input_lan
		iifname "up1" jump input_wan
		jump handle_reject
	}
	chain forward {
		type filter hook forward priority filter; policy drop;
		CHAIN_PRE_FORWARD
		ct state vmap { established : accept, related : accept }
		iifname "up0" jump forward_lan
		iifname "up1" jump forward_wan
		jump handle_reject
	}
	chain syn_flood {
		limit rate 25/second burst 50 packets return
		drop
	}
	chain input_lan { jump accept_from_lan; }
	chain input_wan {
		meta l4proto { icmp, ipv6-icmp } accept
		WAN_RULE
		jump reject_from_wan
	}
	chain forward_lan { jump accept_to_wan; }
	chain forward_wan { jump reject_from_wan; }
	chain accept_from_lan { iifname "up0" accept; }
	chain accept_to_wan { oifname "up1" accept; }
	chain reject_from_wan { iifname "up1" jump handle_reject; }
	chain handle_reject {
		meta l4proto tcp reject with tcp reset
		reject with icmpx type port-unreachable
	}
}
`
	// What packaging/openwrt puts at CHAIN_PRE_FORWARD.
	fw4Advice = `
		iifname "mgl-*" accept
		oifname "mgl-*" ct state established,related accept
		oifname "mgl-*" ct status dnat accept
`
	// As Debian's nftables.conf for a server, with one port open for the LAN.
	debian = `
flush ruleset
table inet filter {
	chain input {
		type filter hook input priority filter; policy accept;
		iif "lo" accept
		ct state established,related accept
		meta l4proto ipv6-icmp accept
		iifname "up0" meta l4proto { tcp, udp } th dport 8080 accept
		drop
	}
	chain forward { type filter hook forward priority filter; policy accept; }
	chain output { type filter hook output priority filter; policy accept; }
}
`
)

func openwrt(rules ...string) string {
	pre, wan := fw4Advice, ""
	if len(rules) > 0 {
		wan = rules[0]
	}
	return strings.NewReplacer("CHAIN_PRE_FORWARD", pre, "WAN_RULE", wan).Replace(fw4)
}

const (
	wanHost   = "198.51.100.2"
	wanClient = "198.51.100.1"
)

// site is a town whose host has a LAN and a WAN.
type site struct {
	*town
	lan, wan string // namespaces of a client on each
}

func newSite(t testing.TB) *site {
	t.Helper()
	l := newLab(t)
	setSysctl(t, "net/ipv4/conf/all/rp_filter", "1") // as many images have it
	t.Cleanup(func() { setSysctl(t, "net/ipv4/conf/all/rp_filter", "0") })
	s := &site{lan: l.outside, wan: newNamespace(t)}
	l.connect("up1", s.wan, wanHost, wanClient)
	s.town = settle(l)
	t.Cleanup(func() { nft(t, "flush ruleset") })
	for _, protocol := range []string{"tcp", "udp"} {
		serve(t, s.webNS, protocol, ":80", "web")
	}
	return s
}

func (s *site) publishWeb() {
	s.t.Helper()
	s.publish(port(s.web, "tcp", 8080, 80), port(s.web, "udp", 8080, 80))
}

func TestPublishedPortsAreForWhomTheFirewallAdmits(t *testing.T) {
	for name, rules := range map[string]string{
		"OpenWrt": openwrt(), "Debian": debian,
		"Debian that filters what it sends": strings.Replace(debian, "hook output priority filter; policy accept;",
			`hook output priority filter; policy drop; oif "lo" accept; ct state established,related accept;`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			nft(t, rules)
			s.publishWeb()
			serve(t, "", "tcp", ":22", "host")

			// A sensor that reports once a day is heard, and nobody has to try again.
			expect.Equal(t, ask(t, s.lan, "udp", at(hostAddr, 8080), silence), "web "+outsideAddr, "answer to the first datagram")
			fragments := dial(t, s.lan, "udp4", at(hostAddr, 8080))
			expect.Equal(t, exchange(fragments, string(make([]byte, 5000)), silence), "web "+outsideAddr, "answer to a long first datagram")
			expect.Equal(t, triedAgain(t, s.lan, at(hostAddr, 8080)), 0, "packets sent again")
			answers(t, s.lan, "tcp", at(hostAddr, 8080), "web "+outsideAddr)
			for _, protocol := range []string{"tcp", "udp"} {
				silent(t, s.wan, protocol, at(wanHost, 8080))
			}
			answers(t, "", "tcp", "127.0.0.1:8080", "web *")
			answers(t, "", "tcp", at(hostAddr, 8080), "web *")
			answers(t, s.webNS, "tcp", at(hostAddr, 8080), "web *")
			answers(t, s.appNS, "tcp", at(hostAddr, 8080), "web *")

			// What the guard drops is new connections to published ports only.
			if name == "OpenWrt" {
				answers(t, s.lan, "tcp", at(hostAddr, 22), "host "+outsideAddr)
			} else {
				silent(t, s.lan, "tcp", at(hostAddr, 22))
			}
		})
	}
}

func TestNothingIsGuardedWhereEverythingIsAccepted(t *testing.T) {
	s := newSite(t)
	nft(t, `table inet filter {
		chain input { type filter hook input priority filter; policy accept; counter; jump more; }
		chain more { tcp dport 22 accept; }
		chain forward { type filter hook forward priority filter; policy accept; }
	}`)
	s.publishWeb()
	expect.Equal(t, triedAgain(t, s.wan, at(wanHost, 8080)), 0, "packets sent again")
	answers(t, s.wan, "tcp", at(wanHost, 8080), "web "+wanClient)
	answers(t, s.wan, "udp", at(wanHost, 8080), "web "+wanClient)
}

func TestPublishingOpenIgnoresTheFirewall(t *testing.T) {
	s := newSite(t)
	nft(t, openwrt())
	open := expect.Value(network.New(network.Options{RunDir: s.runDir, Publish: network.PublishOpen}))(t)
	expect.Check(t, open.SyncPorts(t.Context(), []network.Port{port(s.web, "tcp", 8080, 80)}, s.networks))
	answers(t, s.wan, "tcp", at(wanHost, 8080), "web "+wanClient)
	expect.ErrorWith(t, expect.ErrorOf(network.New(network.Options{RunDir: s.runDir, Publish: "wide"})), "", "a word that means nothing")
}

// Opening and closing the host's firewall opens and closes published ports, at
// once for those who come, while no agent runs.
func TestFirewallOpensAndClosesPublishedPorts(t *testing.T) {
	s := newSite(t)
	nft(t, openwrt())
	s.publishWeb()
	silent(t, s.wan, "tcp", at(wanHost, 8080))
	nft(t, openwrt(`ip saddr `+wanClient+` meta l4proto { tcp, udp } th dport 8080 accept`))
	for _, protocol := range []string{"tcp", "udp"} {
		answers(t, s.wan, protocol, at(wanHost, 8080), "web "+wanClient)
	}
	nft(t, openwrt())
	for _, protocol := range []string{"tcp", "udp"} {
		silent(t, s.wan, protocol, at(wanHost, 8080))
	}
	answers(t, s.lan, "tcp", at(hostAddr, 8080), "web "+outsideAddr)
}

// A firewall that judges by more than the link is obeyed: it admits one client at
// one address and port.
func TestAdmissionIsForOneClient(t *testing.T) {
	s := newSite(t)
	inside(t, s.wan, func() { address(t, "eth0", "198.51.100.9/24") })
	nft(t, openwrt(`ip saddr `+wanClient+` ip daddr `+wanHost+` tcp dport 8080 accept`))
	address(t, "up1", "198.51.100.3/24")
	s.publish(port(s.web, "tcp", 8080, 80), port(s.web, "tcp", 8081, 80))
	answers(t, s.wan, "tcp", at(wanHost, 8080), "web "+wanClient)
	for _, to := range []string{at("198.51.100.3", 8080), at(wanHost, 8081)} {
		silent(t, s.wan, "tcp", to)
	}
	inside(t, s.wan, func() {
		d := net.Dialer{Timeout: silence, LocalAddr: &net.TCPAddr{IP: net.ParseIP("198.51.100.9")}}
		if conn, err := d.Dial("tcp4", at(wanHost, 8080)); err == nil {
			t.Errorf("another client got through: %q", exchange(conn, "?", silence))
			conn.Close()
		}
	})
}

// A redirection of the host's own is judged by the host alone.
func TestRedirectionOfTheHostAdmitsNobody(t *testing.T) {
	s := newSite(t)
	nft(t, openwrt(`ct status dnat accept`))
	nft(t, `table ip moved { chain pre { type nat hook prerouting priority dstnat; iifname "up1" tcp dport 80 redirect to :8080; }; }`)
	s.publishWeb()
	_ = ask(t, s.wan, "tcp", at(wanHost, 80), silence)
	silent(t, s.wan, "tcp", at(wanHost, 8080))
}

// What others do to the rules is followed by the kernel's word alone.
func TestChangesOfTheRulesAreFollowed(t *testing.T) {
	s := newSite(t)
	s.publishWeb()
	before := rules(t, "margolite")
	s.repairing(func() { t.Error("a namespace was said to be lost") })
	for _, change := range []string{
		"flush ruleset", "delete table ip margolite", "flush chain ip margolite forward", "flush map ip margolite published",
	} {
		nft(t, change)
		expect.Eventually(t, "the rules are as before "+change, func() bool { return rules(t, "margolite") == before })
	}
	nft(t, debian)
	expect.Eventually(t, "the port is for whom the firewall admits", func() bool {
		return ask(t, s.lan, "tcp", at(hostAddr, 8080), silence) == "web "+outsideAddr && ask(t, s.wan, "tcp", at(wanHost, 8080), silence) == ""
	})
}

// A conversation goes on while somebody loads the rules of the host anew, which
// on Debian flushes everything, ours too.
func TestConversationSurvivesReloads(t *testing.T) {
	s := newSite(t)
	nft(t, debian)
	echo(t, s.webNS, ":81")
	ports := []network.Port{port(s.web, "tcp", 8080, 81)}
	s.publish(ports...)
	s.repairing(func() { t.Error("a namespace was said to be lost") })
	expect.Eventually(t, "it is watched", func() bool { return hasTable(t, "margolite_alive") })
	conn := dial(t, s.lan, "tcp4", at(hostAddr, 8080))
	answers := make(chan string)
	go func() {
		defer close(answers)
		for s.ctx.Err() == nil {
			select {
			case answers <- exchange(conn, "?", patience):
			case <-s.ctx.Done():
			}
		}
	}()
	for range 10 {
		nft(t, debian)
		for range 100 {
			if got := <-answers; got != "?" {
				t.Fatalf("got %q", got)
			}
		}
	}
}

// echo says what it is told.
func echo(t testing.TB, netns, at string) {
	t.Helper()
	inside(t, netns, func() {
		accept(t, "tcp4", at, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
	})
}

func TestAdviceIsForFirewallsThatDropWhatIsForwarded(t *testing.T) {
	for _, c := range []struct{ name, rules, want string }{
		{"no rules", "", ""},
		{"Debian's, which forwards", debian, ""},
		{"OpenWrt's", strings.NewReplacer("CHAIN_PRE_FORWARD", "", "WAN_RULE", "").Replace(fw4), "/usr/share/nftables.d/chain-pre/forward/"},
		{"OpenWrt's when it was told", openwrt(), ""},
		{"one that ends in a rejection", `table inet filter { chain forward { type filter hook forward priority filter; policy accept; tcp dport 1 accept; counter reject; }; }`, "nftables.conf"},
		{"one that was told of the subnets", `table inet filter { chain forward { type filter hook forward priority filter; policy drop; ip saddr 172.29.0.0/16 accept; }; }`, ""},
		{"one that drops some packets", `table inet filter { chain forward { type filter hook forward priority filter; policy accept; ct state invalid drop; }; }`, ""},
		{"Docker's", `table ip filter { chain DOCKER-USER { }; chain FORWARD { type filter hook forward priority filter; policy drop; jump DOCKER-USER; }; }`, "DOCKER-USER"},
		{"Docker's when it was told", `table ip filter { chain DOCKER-USER { iifname "mgl-*" accept; }; chain FORWARD { type filter hook forward priority filter; policy drop; jump DOCKER-USER; }; }`, ""},
		{"firewalld's", `table inet firewalld { chain filter_FORWARD { type filter hook forward priority 10; policy accept; ct status dnat accept; reject with icmpx admin-prohibited; }; }`, "firewall-cmd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			requireLab(t)
			nft(t, "flush ruleset")
			t.Cleanup(func() { nft(t, "flush ruleset") })
			nft(t, c.rules)
			problems := expect.Value(network.Advice(t.Context()))(t)
			if c.want == "" && len(problems) > 0 || c.want != "" && (len(problems) != 1 || !strings.Contains(problems[0].Mend, c.want)) {
				t.Errorf("got %q, want %q", problems, c.want)
			}
		})
	}
}

// The advice for OpenWrt does what it says: without it containers reach nobody.
func TestAdviceForOpenWrtSuffices(t *testing.T) {
	s := newSite(t)
	serve(t, s.wan, "tcp", ":80", "wan")
	nft(t, strings.NewReplacer("CHAIN_PRE_FORWARD", "", "WAN_RULE", "").Replace(fw4))
	s.publishWeb()
	silent(t, s.webNS, "tcp", at(wanClient, 80))
	nft(t, openwrt())
	answers(t, s.webNS, "tcp", at(wanClient, 80), "wan *")
	answers(t, s.lan, "tcp", at(hostAddr, 8080), "web *")
}
