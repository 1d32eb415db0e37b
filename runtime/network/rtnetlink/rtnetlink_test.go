package rtnetlink_test

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/netlink"
	"github.com/margolite/margolite/runtime/network/rtnetlink"
	"github.com/margolite/margolite/test/isolated"
)

// What is made is looked at with the program ip, and the other way round.
func TestMain(m *testing.M) { os.Exit(isolated.Main(m)) }

func open(t *testing.T) *rtnetlink.Conn {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and the program ip")
	}
	c, err := rtnetlink.Open()
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func ip(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", command, err, out)
	}
	return string(out)
}

// told is what ip says about a link.
type told struct {
	IfName, Master, Address, IfAlias, Link string
	MTU                                    int
	Flags                                  []string
	LinkInfo                               struct {
		Kind string `json:"info_kind"`
		Data struct {
			Mode string
			ID   int
		} `json:"info_data"`
		Port struct{ Hairpin, Isolated bool } `json:"info_slave_data"`
	}
}

func tell(t *testing.T, name string) told {
	t.Helper()
	var all []told
	must(t, json.Unmarshal([]byte(ip(t, "-json -details link show "+name)), &all))
	return all[0]
}

// add makes the link until the test ends; kernels do without some kinds.
func add(t *testing.T, c *rtnetlink.Conn, l rtnetlink.NewLink) rtnetlink.Link {
	t.Helper()
	err := c.AddLink(l)
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("the kernel has no %s", l.Kind)
	}
	must(t, err)
	made, err := c.Link(l.Name)
	must(t, err)
	t.Cleanup(func() { must(t, c.RemoveLink(made.Index)) })
	return made
}

func TestBridgeAndItsPorts(t *testing.T) {
	c := open(t)
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	bridge := add(t, c, rtnetlink.NewLink{Kind: rtnetlink.Bridge, Name: "b0", HardwareAddr: mac})
	if got := tell(t, "b0"); got.LinkInfo.Kind != "bridge" || got.Address != mac.String() || bridge.Kind != rtnetlink.Bridge || bridge.HardwareAddr.String() != mac.String() {
		t.Errorf("got %+v, read as %+v", got, bridge)
	}
	port := add(t, c, rtnetlink.NewLink{
		Kind: rtnetlink.Veth, Name: "v0", MTU: 1400, Master: bridge.Index,
		Peer: rtnetlink.Peer{Name: "v1", HardwareAddr: mac},
	})
	must(t, c.SetPort(port.Index, rtnetlink.Port{Hairpin: true, Isolated: true}))
	must(t, c.SetAlias(port.Index, "some words"))
	must(t, c.SetUp(port.Index))
	if got := tell(t, "v0"); got.Master != "b0" || got.MTU != 1400 || got.IfAlias != "some words" || !slices.Contains(got.Flags, "UP") ||
		!got.LinkInfo.Port.Hairpin || !got.LinkInfo.Port.Isolated {
		t.Errorf("got %+v", got)
	}
	if got := tell(t, "v1"); got.MTU != 1400 || got.Address != mac.String() || got.Link != "v0" {
		t.Errorf("the other end is %+v", got)
	}
	port, err := c.LinkByIndex(port.Index)
	must(t, err)
	other, err := c.Link("v1")
	must(t, err)
	want := rtnetlink.Link{
		Index: port.Index, Name: "v0", Alias: "some words", Kind: rtnetlink.Veth, Parent: other.Index, Master: bridge.Index,
		MTU: 1400, HardwareAddr: port.HardwareAddr, Up: true, Port: rtnetlink.Port{Hairpin: true, Isolated: true},
	}
	if port.HardwareAddr = nil; other.Parent != port.Index || port.Name != want.Name || port.Port != want.Port || port.Master != want.Master ||
		port.Parent != want.Parent || !port.Up || port.Alias != want.Alias || port.MTU != want.MTU {
		t.Errorf("read as %+v, want %+v", port, want)
	}
	must(t, c.SetPort(port.Index, rtnetlink.Port{Hairpin: true}))
	if got := tell(t, "v0").LinkInfo.Port; !got.Hairpin || got.Isolated {
		t.Errorf("the port is %+v", got)
	}
	must(t, c.SetMTU(other.Index, 1300))
	must(t, c.SetHardwareAddr(other.Index, net.HardwareAddr{2, 0, 0, 0, 0, 8}))
	must(t, c.SetName(other.Index, "v9"))
	must(t, c.SetMaster(other.Index, bridge.Index))
	if got := tell(t, "v9"); got.MTU != 1300 || got.Address != "02:00:00:00:00:08" || got.Master != "b0" {
		t.Errorf("got %+v", got)
	}
	links, err := c.Links()
	must(t, err)
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	if want := []string{"b0", "lo", "v0", "v9"}; !slices.Equal(names, want) {
		t.Errorf("links are %q, want %q", names, want)
	}
}

func TestLinksOnAParent(t *testing.T) {
	for name, c := range map[string]struct {
		link rtnetlink.NewLink
		mode string
		id   int
	}{
		"macvlan, private":  {rtnetlink.NewLink{Kind: rtnetlink.Macvlan, Mode: rtnetlink.MacvlanPrivate}, "private", 0},
		"macvlan, VEPA":     {rtnetlink.NewLink{Kind: rtnetlink.Macvlan, Mode: rtnetlink.MacvlanVEPA}, "vepa", 0},
		"macvlan, bridge":   {rtnetlink.NewLink{Kind: rtnetlink.Macvlan, Mode: rtnetlink.MacvlanBridge}, "bridge", 0},
		"macvlan, passthru": {rtnetlink.NewLink{Kind: rtnetlink.Macvlan, Mode: rtnetlink.MacvlanPassthrough}, "passthru", 0},
		"ipvlan, L2":        {rtnetlink.NewLink{Kind: rtnetlink.IPvlan, Mode: rtnetlink.IPvlanL2}, "l2", 0},
		"ipvlan, L3":        {rtnetlink.NewLink{Kind: rtnetlink.IPvlan, Mode: rtnetlink.IPvlanL3}, "l3", 0},
		"ipvlan, L3S":       {rtnetlink.NewLink{Kind: rtnetlink.IPvlan, Mode: rtnetlink.IPvlanL3S}, "l3s", 0},
		"VLAN":              {rtnetlink.NewLink{Kind: rtnetlink.VLAN, VLAN: 4094}, "", 4094},
	} {
		t.Run(name, func(t *testing.T) {
			conn := open(t)
			parent := add(t, conn, rtnetlink.NewLink{Kind: rtnetlink.Veth, Name: "v0", Peer: rtnetlink.Peer{Name: "v1"}})
			c.link.Name, c.link.Parent = "sub0", parent.Index
			made := add(t, conn, c.link)
			got := tell(t, "sub0")
			if got.Link != "v0" || got.LinkInfo.Kind != c.link.Kind || got.LinkInfo.Data.Mode != c.mode || got.LinkInfo.Data.ID != c.id {
				t.Errorf("got %+v", got)
			}
			if made.Kind != c.link.Kind || made.Mode != c.link.Mode || made.Parent != parent.Index {
				t.Errorf("read as %+v", made)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	c := open(t)
	link := add(t, c, rtnetlink.NewLink{Kind: rtnetlink.Bridge, Name: "b0"})
	must(t, c.SetUp(link.Index))
	addresses := func(family byte) (found []string) {
		all, err := c.Addresses(family)
		must(t, err)
		for _, a := range all {
			if a.Link == link.Index && !a.Prefix.Addr().IsLinkLocalUnicast() {
				text := a.Prefix.String()
				if a.Peer.IsValid() {
					text += " to " + a.Peer.String()
				}
				found = append(found, text)
			}
		}
		slices.Sort(found)
		return found
	}
	plain := []string{"192.0.2.7/24", "192.0.2.130/31", "2001:db8::7/64"}
	for _, p := range plain {
		must(t, c.AddAddress(rtnetlink.Address{Link: link.Index, Prefix: netip.MustParsePrefix(p)}))
	}
	ip(t, "address add 198.51.100.1 peer 198.51.100.9/32 dev b0")
	ip(t, "address add 2001:db8:1::1 peer 2001:db8:1::9/128 dev b0")
	out := ip(t, "address show dev b0")
	for _, want := range []string{"inet 192.0.2.7/24 brd 192.0.2.255 scope global", "inet 192.0.2.130/31 scope global", "inet6 2001:db8::7/64 scope global nodad"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	four := []string{"192.0.2.130/31", "192.0.2.7/24", "198.51.100.1/32 to 198.51.100.9/32"}
	six := []string{"2001:db8:1::1/128 to 2001:db8:1::9/128", "2001:db8::7/64"}
	for family, want := range map[byte][]string{unix.AF_INET: four, unix.AF_INET6: six, unix.AF_UNSPEC: slices.Concat(four, six)} {
		if got := addresses(family); !slices.Equal(got, want) {
			t.Errorf("of family %d: got %q, want %q", family, got, want)
		}
	}
	err := c.AddAddress(rtnetlink.Address{Link: link.Index, Prefix: netip.MustParsePrefix(plain[0])})
	if !errors.Is(err, os.ErrExist) {
		t.Errorf("one that is there: %v", err)
	}
	all, err := c.Addresses(unix.AF_UNSPEC)
	must(t, err)
	for _, a := range all {
		if a.Link == link.Index {
			must(t, c.RemoveAddress(a))
		}
	}
	if left := addresses(unix.AF_UNSPEC); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}

func TestRoutes(t *testing.T) {
	c := open(t)
	link := add(t, c, rtnetlink.NewLink{Kind: rtnetlink.Bridge, Name: "b0"})
	must(t, c.SetUp(link.Index))
	for _, p := range []string{"192.0.2.7/24", "2001:db8::7/64"} {
		must(t, c.AddAddress(rtnetlink.Address{Link: link.Index, Prefix: netip.MustParsePrefix(p)}))
	}
	routes := func(family byte) (all []rtnetlink.Route) {
		found, err := c.Routes(family)
		must(t, err)
		for _, r := range found {
			if r.Destination.Bits() == 0 && r.Table == unix.RT_TABLE_MAIN {
				all = append(all, r)
			}
		}
		return all
	}
	for _, x := range []struct {
		family       byte
		flag         string
		gateway, via string
		want         string
	}{
		{unix.AF_INET, "-4", "192.0.2.1", "", "default via 192.0.2.1 dev b0"},
		{unix.AF_INET, "-4", "", "", "default dev b0 scope link"},
		{unix.AF_INET6, "-6", "2001:db8::1", "", "default via 2001:db8::1 dev b0"},
		{unix.AF_INET6, "-6", "", "", "default dev b0"},
	} {
		var gateway netip.Addr
		if x.gateway != "" {
			gateway = netip.MustParseAddr(x.gateway)
		}
		want := rtnetlink.Default(link.Index, x.family, gateway)
		for range 2 { // the second time it replaces itself
			must(t, c.ReplaceRoute(want))
		}
		if got := ip(t, x.flag+" route show default"); !strings.HasPrefix(got, x.want) {
			t.Errorf("got %q, want %q", got, x.want)
		}
		got := routes(x.family)
		if len(got) != 1 || got[0].Gateway != gateway || got[0].Link != link.Index || got[0].Type != unix.RTN_UNICAST {
			t.Errorf("read as %+v, want %+v", got, want)
		}
		for _, r := range got {
			must(t, c.RemoveRoute(r))
			if err := c.RemoveRoute(r); !errors.Is(err, unix.ESRCH) {
				t.Errorf("one that is not there: %v", err)
			}
		}
		if left := ip(t, x.flag+" route show default"); left != "" {
			t.Errorf("left is %s", left)
		}
	}
	ip(t, "route add 198.51.100.0/24 via 192.0.2.1 table 1000 metric 7")
	ip(t, "route add 203.0.113.0/24 nexthop via 192.0.2.1 nexthop via 192.0.2.2")
	all, err := c.Routes(unix.AF_INET)
	must(t, err)
	for _, want := range []rtnetlink.Route{
		{Destination: netip.MustParsePrefix("198.51.100.0/24"), Gateway: netip.MustParseAddr("192.0.2.1"), Link: link.Index, Priority: 7, Table: 1000, Type: unix.RTN_UNICAST, Protocol: unix.RTPROT_BOOT},
		{Destination: netip.MustParsePrefix("203.0.113.0/24"), Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST, Protocol: unix.RTPROT_BOOT},
	} {
		if !slices.Contains(all, want) {
			t.Errorf("no %+v in %+v", want, all)
		}
	}
}

func TestErrorsAreTheKernels(t *testing.T) {
	c := open(t)
	_, err := c.Link("none0")
	if !errors.Is(err, unix.ENODEV) {
		t.Errorf("a link that is not there: %v", err)
	}
	if _, err := c.Link("a-name-that-no-link-can-have"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("a link that cannot be there: %v", err)
	}
	if err := c.RemoveLink(1 << 20); !errors.Is(err, unix.ENODEV) {
		t.Errorf("removing what is not there: %v", err)
	}
	err = c.AddLink(rtnetlink.NewLink{Kind: "nonsense", Name: "x0"})
	var refused *netlink.Error
	if !errors.As(err, &refused) || refused.Errno != unix.EOPNOTSUPP || !strings.Contains(err.Error(), refused.Text) {
		t.Errorf("a kind that nobody knows: %v", err)
	}
	// The kernel has words for this.
	if err = c.SetMTU(1, 1<<30); err == nil {
		err = c.AddLink(rtnetlink.NewLink{Kind: rtnetlink.Bridge, Name: "x0", MTU: 1})
	}
	if !errors.As(err, &refused) || refused.Text == "" {
		t.Errorf("an error without words: %v", err)
	}
}
