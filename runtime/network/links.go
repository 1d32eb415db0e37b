package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// wire is a link of a sandbox and what it is connected with.
type wire struct {
	Attachment
	mac   net.HardwareAddr // nil: that of the parent
	mtu   int
	on    netlink.Link // the bridge, or the parent of a macvlan or ipvlan
	name  string       // of the host's end of the veth pair, if it is one
	outer netlink.Link // that end; nil: it is not there
	inner string       // the name of the sandbox's end
	whole bool         // the sandbox has its end
}

// ensureLinks connects the namespace with its networks, and with no other.
func ensureLinks(s Sandbox, netns string) error {
	wires, err := wiresOf(s)
	if err != nil {
		return err
	}
	if err := removeOuter(s, wires); err != nil {
		return err
	}
	whole := false
	if err := inside(netns, func() error {
		err := matchInner(wires)
		if whole = !slices.ContainsFunc(wires, func(w wire) bool { return !w.whole }); err != nil || !whole {
			return err
		}
		return ensureInner(wires) // saves another visit: each needs a thread of its own
	}); err != nil {
		return err
	}
	for i := range wires {
		if err := wires[i].ensure(netns); err != nil {
			return err
		}
	}
	// The inner ends come up first: once there is a carrier, all is in place.
	if !whole {
		if err := inside(netns, func() error { return ensureInner(wires) }); err != nil {
			return err
		}
	}
	for _, w := range wires {
		if w.outer == nil {
			continue
		}
		if err := netlink.LinkSetUp(w.outer); err != nil {
			return fmt.Errorf("cannot set %s up: %w", w.name, err)
		}
	}
	return nil
}

// wiresOf looks up what the sandbox is to be connected with.
func wiresOf(s Sandbox) ([]wire, error) {
	wires := make([]wire, len(s.Attached))
	for i, name := range s.links() {
		w := wire{Attachment: s.Attached[i], name: name}
		network := w.Network
		at := network.Bridge
		if !network.isBridge() {
			at = network.Parent
		}
		var err error
		if w.on, err = netlink.LinkByName(at); err != nil {
			return nil, fmt.Errorf("cannot find link %s of network %s: %w", at, network.Name, err)
		}
		if w.mtu = w.on.Attrs().MTU; !network.isBridge() && network.MTU > 0 {
			w.mtu = min(w.mtu, network.MTU)
		}
		if w.mac, err = w.hardwareAddr(); err != nil {
			return nil, err
		}
		if name != "" {
			if w.outer, err = findLink(name); err != nil {
				return nil, err
			}
		}
		wires[i] = w
	}
	return wires, nil
}

// removeOuter removes the replica's links on the host, save these.
func removeOuter(s Sandbox, keep []wire) error {
	links, err := complete(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("cannot list links: %w", err)
	}
	for _, link := range links {
		name := link.Attrs().Name
		ours := isLinkName(vethPrefix, name) && strings.HasPrefix(name, s.linkPrefix())
		if ours && !slices.ContainsFunc(keep, func(w wire) bool { return w.name == name }) {
			err = errors.Join(err, removeLink(name))
		}
	}
	return err
}

// matchInner finds the sandbox's ends of the wires and names those to be made;
// what is in their way goes. Links of other names are the container's own. It
// runs in the namespace.
func matchInner(wires []wire) error {
	links, err := complete(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("cannot list links: %w", err)
	}
	names := make(map[string]bool) // that are given away
	for _, w := range wires {
		if w.Interface != "" {
			names[w.Interface] = true
		}
	}
	for i := range wires {
		w := &wires[i]
		at := slices.IndexFunc(links, w.isInner)
		if at < 0 {
			continue
		}
		name := links[at].Attrs().Name
		if name == w.Interface || w.Interface == "" && isNumbered(name) && !names[name] {
			w.inner, w.whole = name, true
			names[name] = true
		}
	}
	next := 0
	for i := range wires {
		w := &wires[i]
		if w.whole {
			continue
		}
		w.inner = w.Interface
		for ; w.inner == ""; next++ {
			if name := numbered(next); !names[name] {
				w.inner = name
			}
		}
	}
	return removeInner(wires)
}

// removeInner removes the links that are in the way of these, and those of
// ours that are none of them. It runs in the namespace.
func removeInner(keep []wire) error {
	links, err := complete(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("cannot list links: %w", err)
	}
	for _, link := range links {
		name := link.Attrs().Name
		marked := strings.HasPrefix(link.Attrs().Alias, aliasPrefix) && (link.Type() == driverMacvlan || link.Type() == driverIPvlan)
		whole := slices.ContainsFunc(keep, func(w wire) bool { return w.whole && w.inner == name })
		inTheWay := slices.ContainsFunc(keep, func(w wire) bool { return w.inner == name || w.isInner(link) })
		if (marked || inTheWay) && !whole {
			err = errors.Join(err, removeLink(name))
		}
	}
	return err
}

const linkStem = "eth"

func numbered(i int) string { return linkStem + strconv.Itoa(i) }

func isNumbered(name string) bool {
	digits, ok := strings.CutPrefix(name, linkStem)
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// isInner says whether the link is the sandbox's end of the wire.
func (w wire) isInner(link netlink.Link) bool {
	if w.Network.isBridge() {
		return w.outer != nil && arePeers(w.outer, link)
	}
	attrs := link.Attrs()
	if attrs.Alias != w.Network.alias() || attrs.ParentIndex != w.on.Attrs().Index {
		return false
	}
	want, err := newLink(w.Network)
	if err != nil {
		return false
	}
	switch want := want.(type) {
	case *netlink.Macvlan:
		is, ok := link.(*netlink.Macvlan)
		return ok && is.Mode == want.Mode
	case *netlink.IPVlan:
		is, ok := link.(*netlink.IPVlan)
		return ok && is.Mode == want.Mode
	}
	return false
}

func arePeers(outer, inner netlink.Link) bool {
	return outer.Type() == "veth" && inner.Type() == "veth" &&
		outer.Attrs().ParentIndex == inner.Attrs().Index &&
		inner.Attrs().ParentIndex == outer.Attrs().Index
}

// ensure makes the wire where it is not there, and connects its outer end.
func (w *wire) ensure(netns string) error {
	if !w.whole {
		if err := w.make(netns); err != nil {
			return err
		}
	}
	if !w.Network.isBridge() {
		return nil
	}
	if err := ensureLink(w.outer, nil, w.mtu); err != nil {
		return err
	}
	// The port of a bridge needs no address, not even a link-local one.
	if err := switchIPv6(w.name, false); err != nil {
		return err
	}
	if w.outer.Attrs().MasterIndex != w.on.Attrs().Index {
		if err := netlink.LinkSetMaster(w.outer, w.on); err != nil {
			return fmt.Errorf("cannot attach %s to bridge %s: %w", w.name, w.Network.Bridge, err)
		}
	}
	// A container that calls its own published port gets the frame back
	// through the port it came from.
	if err := netlink.LinkSetHairpin(w.outer, true); err != nil {
		return fmt.Errorf("cannot set hairpin mode of %s: %w", w.name, err)
	}
	if err := netlink.LinkSetIsolated(w.outer, w.Network.Apart); err != nil && w.Network.Apart {
		return fmt.Errorf("cannot keep %s apart from its neighbours: %w", w.name, err)
	}
	return nil
}

// make makes the wire. A host's end without the other, or with one in a
// namespace of the past, is of no use and goes.
func (w *wire) make(netns string) error {
	ns, err := os.Open(netns)
	if err != nil {
		return fmt.Errorf("cannot open namespace: %w", err)
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.MTU = w.mtu
	if !w.Network.isBridge() {
		link, err := newLink(w.Network)
		if err != nil {
			return err
		}
		attrs.Name, attrs.ParentIndex, attrs.HardwareAddr = w.inner, w.on.Attrs().Index, w.mac
		attrs.Namespace = netlink.NsFd(int(ns.Fd()))
		*link.Attrs() = attrs
		if err := netlink.LinkAdd(link); err != nil {
			return fmt.Errorf("cannot add %s %s on %s: %w", w.Network.Driver, w.inner, w.Network.Parent, err)
		}
		return nil
	}
	if err := removeLink(w.name); err != nil {
		return err
	}
	attrs.Name = w.name
	err = netlink.LinkAdd(&netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         w.inner,
		PeerHardwareAddr: w.mac,
		PeerNamespace:    netlink.NsFd(int(ns.Fd())),
	})
	if err != nil {
		return fmt.Errorf("cannot add veth pair %s: %w", w.name, err)
	}
	if w.outer, err = netlink.LinkByName(w.name); err != nil {
		return fmt.Errorf("cannot find link %s: %w", w.name, err)
	}
	return nil
}

// ensureInner sets up what is inside the namespace; it runs there.
func ensureInner(wires []wire) error {
	v6 := slices.ContainsFunc(wires, wire.hasIPv6)
	for _, link := range []string{"all", "default"} {
		if err := switchIPv6(link, v6); err != nil {
			return err
		}
	}
	// As images expect it: no privilege is needed for low ports here, which
	// are nobody else's, nor for ping. Kernels without the keys do without.
	_ = setSysctl("net/ipv4/ip_unprivileged_port_start", "0")
	_ = setSysctl("net/ipv4/ping_group_range", "0\t2147483647")

	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("cannot find link lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("cannot set lo up: %w", err)
	}
	own := make([]int, len(wires)) // the links by index
	for i, w := range wires {
		if own[i], err = w.ensureInner(); err != nil {
			return err
		}
	}
	for _, f := range families() {
		if err := f.ensureDefaultRoute(wires, own); err != nil {
			return err
		}
	}
	return nil
}

func (w wire) hasIPv6() bool {
	return w.Address6.IsValid() || slices.ContainsFunc(w.Further, netip.Addr.Is6)
}

// ensureInner sets up the sandbox's end and returns its index.
func (w wire) ensureInner() (int, error) {
	link, err := netlink.LinkByName(w.inner)
	if err != nil {
		return 0, fmt.Errorf("cannot find link %s: %w", w.inner, err)
	}
	if !w.Network.isBridge() && link.Attrs().Alias != w.Network.alias() {
		if err := netlink.LinkSetAlias(link, w.Network.alias()); err != nil {
			return 0, fmt.Errorf("cannot mark link %s: %w", w.inner, err)
		}
	}
	if err := ensureLink(link, w.mac, w.mtu); err != nil {
		return 0, err
	}
	if err := switchIPv6(w.inner, w.hasIPv6()); err != nil {
		return 0, err
	}
	addrs := w.Network.prefixes(w.Address, w.Address6)
	for _, a := range w.Further {
		bits := 16 // 169.254.0.0
		if a.Is6() {
			bits = 64
		}
		addrs = append(addrs, netip.PrefixFrom(a, bits))
	}
	if err := ensureAddresses(link, addrs); err != nil {
		return 0, err
	}
	for _, setting := range w.Sysctls {
		key, value, err := linkSysctl(setting, w.inner)
		if err != nil {
			return 0, err
		}
		if err := setSysctl(key, value); err != nil {
			return 0, err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return 0, fmt.Errorf("cannot set %s up: %w", w.inner, err)
	}
	return link.Attrs().Index, nil
}

// ensureDefaultRoute leads out by the first wire that has a way out. A default
// route of another link is the container's own, and stays.
func (f family) ensureDefaultRoute(wires []wire, own []int) error {
	var want *netlink.Route
	for i, w := range wires {
		gateway := f.gateway(w.Network)
		switch {
		case w.Network.Internal || !f.subnet(w.Network).IsValid() || want != nil:
		case f.route == netlink.FAMILY_V6 && !w.Address6.IsValid() || f.route == netlink.FAMILY_V4 && !w.Address.IsValid():
		case w.Network.routesItself():
			want = &netlink.Route{LinkIndex: own[i], Scope: netlink.SCOPE_LINK}
		case gateway.IsValid():
			want = &netlink.Route{LinkIndex: own[i], Gw: gateway.AsSlice()}
		}
	}
	routes, err := allRoutes(f)
	if err != nil {
		return err
	}
	there := false
	for _, r := range routes {
		switch {
		case !isDefault(r) || r.Table != unix.RT_TABLE_MAIN || r.Type != unix.RTN_UNICAST:
		case want != nil && r.LinkIndex == want.LinkIndex && r.Gw.Equal(want.Gw):
			there = true
		case slices.Contains(own, r.LinkIndex):
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("cannot remove a default route: %w", err)
			}
		default:
			there = true
		}
	}
	if want == nil || there {
		return nil
	}
	want.Dst = ipNet(netip.PrefixFrom(f.unspecified, 0))
	if err := netlink.RouteReplace(want); err != nil {
		return fmt.Errorf("cannot set the default route: %w", err)
	}
	return nil
}
