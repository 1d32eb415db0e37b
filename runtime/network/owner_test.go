package network_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/margolite/margolite/runtime/network"
	"github.com/margolite/margolite/test/expect"
)

// neighbour is a second margolite in the lab, with directories of its own.
func (l *lab) neighbour() *lab {
	l.t.Helper()
	other := *l
	other.runDir = filepath.Join(l.t.TempDir(), "run")
	other.Networks = l.networksIn(other.runDir, filepath.Join(l.t.TempDir(), "state"))
	l.t.Cleanup(other.clear)
	return &other
}

func (l *lab) networksIn(run, state string) *network.Networks {
	l.t.Helper()
	return expect.Value(network.New(network.Options{RunDir: run, StateDir: state, Logger: slog.New(slog.DiscardHandler)}))(l.t)
}

// A second margolite has workloads of the same names, beside those of a first
// that does not run, and takes them down again.
func TestOwnersLiveSideBySide(t *testing.T) {
	w := newDualStack(t, network.Network{})
	l := w.neighbour()
	w.publish(port(w.web, "tcp", 8080, 80), port6(w.web, "tcp", 8080, 80))
	first, firstRules := links(t), rules(t, "margolite")

	shop := l.networkOf(network.Network{Name: "shop_default"}, true)
	if shop.Bridge == w.shop.Bridge || shop.Subnet.Overlaps(w.shop.Subnet) || shop.Subnet6.Overlaps(w.shop.Subnet6) {
		t.Fatalf("both have %+v", shop)
	}
	web := replica(shop, "web", 1)
	webNS := l.sandbox(web)
	expect.Check(t, l.Leftovers(t.Context(), []network.Sandbox{web}, []network.Network{shop}))
	expect.Check(t, l.SyncPorts(t.Context(), []network.Port{port(web, "tcp", 8081, 80), port6(web, "tcp", 8081, 80)}, []network.Network{shop}))

	works := func() {
		t.Helper()
		answers(t, w.outside, "tcp", at(hostAddr, 8080), "first *")
		answers(t, w.dbNS, "tcp", at(w.web.Address(), 80), "first *")
		answers(t, w.dbNS, "tcp", at(w.web.Attached[0].Address6, 80), "first *")
	}
	serve(t, w.webNS, "tcp", ":80", "first")
	works()
	serve(t, webNS, "tcp", ":80", "second")
	answers(t, w.outside, "tcp", at(hostAddr, 8081), "second *")
	silent(t, webNS, "tcp", at(w.web.Address(), 80))
	silent(t, webNS, "tcp", at(w.web.Attached[0].Address6, 80))
	silent(t, w.dbNS, "tcp", at(web.Address(), 80))

	taken := port(web, "tcp", 8080, 80)
	foreign := expect.Value(l.ForeignPorts(t.Context()))(t)
	var refused *network.PortError
	if err := l.CheckPort(taken, foreign); !errors.As(err, &refused) || !strings.Contains(refused.Holder, w.runDir) {
		t.Errorf("port of the first: %v", err)
	}
	number := expect.Value(l.FreePort("tcp", netip.Addr{}, 8080, 8090, foreign))(t)
	expect.Equal(t, number == 8080, false, "a port of the first is given away")

	expect.Check(t, l.RemoveSandbox(t.Context(), web))
	expect.Check(t, l.RemoveNetwork(t.Context(), shop))
	l.clear()
	expect.Equal(t, links(t), first, "links")
	expect.Equal(t, rules(t, "margolite"), firstRules, "rules")
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		expect.Equal(t, sysctl(t, key), "1", "%s", key)
	}
	works()
}

// The first one to switch forwarding on may go before the others.
func TestForwardingStaysForOthers(t *testing.T) {
	w := newTown(t)
	l := w.neighbour()
	w.converge()
	shop := l.network("shop")
	web := replica(shop, "web", 1)
	ns := l.sandbox(web)
	expect.Check(t, l.SyncPorts(t.Context(), nil, []network.Network{shop}))
	w.clear()
	serve(t, w.outside, "tcp", at(outsideAddr, 99), "outside")
	answers(t, ns, "tcp", at(outsideAddr, 99), "outside *")
}

func TestRunDirectoryHasOneOwner(t *testing.T) {
	l := newLab(t)
	run, state := filepath.Join(t.TempDir(), "run"), t.TempDir()
	n := l.networksIn(run, state)
	w, err := n.Choose(network.Network{Name: "shop_default"}, false, nil)
	expect.Check(t, err)
	expect.Check(t, n.EnsureNetwork(t.Context(), w))
	web := replica(w, "web", 1)
	expect.Check(t, n.EnsureSandbox(t.Context(), web, nil))
	_, err = network.New(network.Options{RunDir: run, StateDir: t.TempDir()})
	expect.True(t, errors.Is(err, network.ErrOtherOwner) && strings.Contains(err.Error(), state), "another owner: %v", err)
	l.networksIn(run, state)
	expect.Check(t, n.RemoveSandbox(t.Context(), web))
	expect.Check(t, n.RemoveNetwork(t.Context(), w))
	l.networksIn(run, t.TempDir())
}

// What has no mark is left alone, also where it has a name of ours: a margolite
// goes on beside it, with a table of another name.
func TestUnmarkedThingsAreLeftAlone(t *testing.T) {
	w := newTown(t)
	w.publish(port(w.web, "tcp", 8080, 80))
	for _, name := range strings.Fields(links(t)) {
		if strings.HasPrefix(name, "mgl-") || strings.HasPrefix(name, "mgv-") {
			alias(t, name, "")
		}
	}
	mark := regexp.MustCompile("owner_[0-9a-f]+").FindString(rules(t, "margolite"))
	nft(t, "flush chain ip margolite "+mark+"; delete chain ip margolite "+mark)
	nft(t, "add table ip6 margolite; add chain ip6 margolite theirs") // without our sets
	nft(t, "add table inet margolite; add table inet fw4")
	t.Cleanup(func() { // fails where one is gone
		nft(t, "delete table ip margolite; delete table ip6 margolite; delete table inet margolite; delete table inet fw4")
	})
	before, was := links(t), rules(t, "margolite")
	unchanged := func() {
		t.Helper()
		expect.Equal(t, links(t), before, "links")
		expect.Equal(t, rules(t, "margolite"), was, "rules")
	}
	l := w.neighbour()
	l.clear()
	unchanged()
	foreign := expect.Value(l.ForeignPorts(t.Context()))(t)
	expect.True(t, len(foreign) == 1 && foreign[0].HostPort == 8080, "ports of others are %v", foreign)

	// Its own links, which it had no time to mark, are its own all the same.
	w.converge()
	w.works(t)
	unchanged()
	expect.Contains(t, rules(t, "margolite-"+strings.TrimPrefix(mark, "owner_")), mark, "table beside the unmarked one")
}

func ipInside(t testing.TB, netns, command string) (out string) {
	t.Helper()
	inside(t, netns, func() { out = ip(t, "%s", command) })
	return out
}

// links are the names of all links of the host, and which one each is.
func links(t testing.TB) string {
	t.Helper()
	all := expect.Value(net.Interfaces())(t)
	var lines []string
	for _, link := range all {
		lines = append(lines, fmt.Sprint(link.Index, " ", link.Name))
	}
	return strings.Join(lines, "\n")
}

// alias gives a link of the host another alias than it has.
func alias(t testing.TB, link, text string) {
	t.Helper()
	if out, err := exec.Command("ip", "link", "set", link, "alias", text).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// rules are those of the host in the tables of this name.
func rules(t testing.TB, table string) string {
	t.Helper()
	var all strings.Builder
	for _, family := range []string{"ip", "ip6"} {
		out, _ := exec.Command("nft", "list", "table", family, table).Output() // there may be none
		all.Write(out)
	}
	return all.String()
}
