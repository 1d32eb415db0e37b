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

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/rtnetlink"
)

// wire is a link of a sandbox and what it is connected with.
type wire struct {
	Attachment
	mac   net.HardwareAddr // nil: that of the parent
	mtu   int
	owner owner
	on    *rtnetlink.Link // the bridge, or the parent of a macvlan or ipvlan
	name  string          // of the host's end of the veth pair, if it is one
	outer *rtnetlink.Link // that end; nil: it is not there
	older *rtnetlink.Link // maybe it, as a release before this one named it
	inner string          // the name of the sandbox's end
	whole bool            // the sandbox has its end
}

// ensureLinks connects the namespace with its networks, and with no other. The
// connection is to the links of the host.
func (o owner) ensureLinks(c *rtnetlink.Conn, s Sandbox, netns string) error {
	wires, err := o.wiresOf(c, s)
	if err != nil {
		return err
	}
	if err := o.removeOuter(c, s, wires); err != nil {
		return err
	}
	whole := false
	if err := insideLinks(netns, func(c *rtnetlink.Conn) error {
		err := matchInner(c, wires)
		if whole = !slices.ContainsFunc(wires, func(w wire) bool { return !w.whole }); err != nil || !whole {
			return err
		}
		return ensureInner(c, wires) // saves another visit: each needs a thread of its own
	}); err != nil {
		return err
	}
	for i := range wires {
		if err := wires[i].ensure(c, netns); err != nil {
			return err
		}
	}
	// The inner ends come up first: once there is a carrier, all is in place.
	if !whole {
		if err := insideLinks(netns, func(c *rtnetlink.Conn) error { return ensureInner(c, wires) }); err != nil {
			return err
		}
	}
	for _, w := range wires {
		if w.outer == nil {
			continue
		}
		if err := setUp(c, w.outer); err != nil {
			return err
		}
	}
	return nil
}

// insideLinks runs f in the network namespace at this path, with a connection to
// its links.
func insideLinks(netns string, f func(c *rtnetlink.Conn) error) error {
	return inside(netns, func() error { return withLinks(f) })
}

// wiresOf looks up what the sandbox is to be connected with.
func (o owner) wiresOf(c *rtnetlink.Conn, s Sandbox) ([]wire, error) {
	wires := make([]wire, len(s.Attached))
	older := s.links(owner{})
	for i, name := range s.links(o) {
		w := wire{Attachment: s.Attached[i], name: name, owner: o}
		network := w.Network
		at := network.Bridge
		if !network.isBridge() {
			at = network.Parent
		}
		var err error
		if w.on, err = mustFindLink(c, at); err != nil {
			return nil, fmt.Errorf("network %s: %w", network.Name, err)
		}
		if w.mtu = w.on.MTU; !network.isBridge() && network.MTU > 0 {
			w.mtu = min(w.mtu, network.MTU)
		}
		if w.mac, err = w.hardwareAddr(); err != nil {
			return nil, err
		}
		if name != "" {
			if w.outer, err = findLink(c, name); err != nil {
				return nil, err
			}
			if w.outer == nil {
				if w.older, err = findLink(c, older[i]); err != nil {
					return nil, err
				}
			}
		}
		wires[i] = w
	}
	return wires, nil
}

// removeOuter removes the replica's links on the host, save these.
func (o owner) removeOuter(c *rtnetlink.Conn, s Sandbox, keep []wire) error {
	links, err := c.Links()
	if err != nil {
		return fmt.Errorf("cannot list links: %w", err)
	}
	for _, link := range links {
		name := link.Name
		ours := isLinkName(vethPrefix, name) && !o.isOthers(link) && (strings.HasPrefix(name, s.linkPrefix(o)) ||
			strings.HasPrefix(name, s.linkPrefix(owner{})) && ownerOfLink(link).is(o))
		if ours && !slices.ContainsFunc(keep, func(w wire) bool { return w.name == name || w.older != nil && w.older.Name == name }) {
			err = errors.Join(err, removeLink(c, name))
		}
	}
	return err
}

// matchInner finds the sandbox's ends of the wires and names those to be made;
// what is in their way goes. Links of other names are the container's own. It
// runs in the namespace.
func matchInner(c *rtnetlink.Conn, wires []wire) error {
	links, err := c.Links()
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
		if at < 0 && w.older != nil {
			if at = slices.IndexFunc(links, func(l rtnetlink.Link) bool { return arePeers(*w.older, l) }); at >= 0 {
				w.outer, w.name = w.older, w.older.Name
			}
		}
		if at < 0 {
			continue
		}
		name := links[at].Name
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
	return removeInner(c, wires)
}

// removeInner removes the links that are in the way of these, and those of
// ours that are none of them. It runs in the namespace.
func removeInner(c *rtnetlink.Conn, keep []wire) error {
	links, err := c.Links()
	if err != nil {
		return fmt.Errorf("cannot list links: %w", err)
	}
	for _, link := range links {
		name := link.Name
		marked := strings.HasPrefix(link.Alias, aliasPrefix) && (link.Kind == rtnetlink.Macvlan || link.Kind == rtnetlink.IPvlan)
		whole := slices.ContainsFunc(keep, func(w wire) bool { return w.whole && w.inner == name })
		inTheWay := slices.ContainsFunc(keep, func(w wire) bool { return w.inner == name || w.isInner(link) })
		if (marked || inTheWay) && !whole {
			err = errors.Join(err, removeLink(c, name))
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
func (w wire) isInner(link rtnetlink.Link) bool {
	if w.Network.isBridge() {
		return w.outer != nil && arePeers(*w.outer, link)
	}
	want, err := newLink(w.Network)
	return err == nil && link.Alias == w.Network.alias() && link.Parent == w.on.Index &&
		link.Kind == want.Kind && link.Mode == want.Mode
}

func arePeers(outer, inner rtnetlink.Link) bool {
	return outer.Kind == rtnetlink.Veth && inner.Kind == rtnetlink.Veth &&
		outer.Parent == inner.Index && inner.Parent == outer.Index
}

// ensure makes the wire where it is not there, and connects its outer end.
func (w *wire) ensure(c *rtnetlink.Conn, netns string) error {
	if !w.whole {
		if err := w.make(c, netns); err != nil {
			return err
		}
	}
	if !w.Network.isBridge() {
		return nil
	}
	if err := w.owner.ensureMark(c, w.outer, w.Network.Name); err != nil {
		return err
	}
	if err := ensureLink(c, w.outer, nil, w.mtu); err != nil {
		return err
	}
	// The port of a bridge needs no address, not even a link-local one.
	if err := switchIPv6(w.name, false); err != nil {
		return err
	}
	attached := w.outer.Master == w.on.Index
	if !attached {
		if err := c.SetMaster(w.outer.Index, w.on.Index); err != nil {
			return fmt.Errorf("cannot attach %s to bridge %s: %w", w.name, w.Network.Bridge, err)
		}
	}
	// A container that calls its own published port gets the frame back
	// through the port it came from.
	port := rtnetlink.Port{Hairpin: true, Isolated: w.Network.Apart}
	if !attached || w.outer.Port != port {
		if err := c.SetPort(w.outer.Index, port); err != nil {
			return fmt.Errorf("cannot set up %s as a port of bridge %s: %w", w.name, w.Network.Bridge, err)
		}
	}
	return nil
}

// make makes the wire. A host's end without the other, or with one in a
// namespace of the past, is of no use and goes.
func (w *wire) make(c *rtnetlink.Conn, netns string) error {
	ns, err := os.Open(netns)
	if err != nil {
		return fmt.Errorf("cannot open namespace: %w", err)
	}
	defer ns.Close()
	if !w.Network.isBridge() {
		link, err := newLink(w.Network)
		if err != nil {
			return err
		}
		link.Name, link.Namespace, link.Parent = w.inner, int(ns.Fd()), w.on.Index
		link.HardwareAddr, link.MTU = w.mac, w.mtu
		if err := c.AddLink(link); err != nil {
			return fmt.Errorf("cannot add %s %s on %s: %w", w.Network.Driver, w.inner, w.Network.Parent, err)
		}
		return nil
	}
	if w.outer != nil {
		if err := removeLink(c, w.name); err != nil {
			return err
		}
	}
	err = c.AddLink(rtnetlink.NewLink{
		Kind: rtnetlink.Veth, Name: w.name, MTU: w.mtu, Master: w.on.Index,
		Peer: rtnetlink.Peer{Name: w.inner, HardwareAddr: w.mac, Namespace: int(ns.Fd())},
	})
	if err != nil {
		return fmt.Errorf("cannot add veth pair %s to bridge %s: %w", w.name, w.Network.Bridge, err)
	}
	w.outer, err = mustFindLink(c, w.name)
	return err
}

// ensureInner sets up what is inside the namespace; it runs there.
func ensureInner(c *rtnetlink.Conn, wires []wire) error {
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

	lo, err := mustFindLink(c, "lo")
	if err != nil {
		return err
	}
	if err := setUp(c, lo); err != nil {
		return err
	}
	own := make([]int, len(wires)) // the links by index
	for i, w := range wires {
		if own[i], err = w.ensureInner(c); err != nil {
			return err
		}
	}
	for _, f := range families() {
		if err := f.ensureDefaultRoute(c, wires, own); err != nil {
			return err
		}
	}
	return nil
}

func (w wire) hasIPv6() bool {
	return w.Address6.IsValid() || slices.ContainsFunc(w.Further, netip.Addr.Is6)
}

// ensureInner sets up the sandbox's end and returns its index.
func (w wire) ensureInner(c *rtnetlink.Conn) (int, error) {
	link, err := mustFindLink(c, w.inner)
	if err != nil {
		return 0, err
	}
	if !w.Network.isBridge() && link.Alias != w.Network.alias() {
		if err := c.SetAlias(link.Index, w.Network.alias()); err != nil {
			return 0, fmt.Errorf("cannot mark link %s: %w", w.inner, err)
		}
	}
	if err := ensureLink(c, link, w.mac, w.mtu); err != nil {
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
	if err := ensureAddresses(c, link, addrs); err != nil {
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
	return link.Index, setUp(c, link)
}

// ensureDefaultRoute leads out by the first wire that has a way out. A default
// route of another link is the container's own, and stays.
func (f *family) ensureDefaultRoute(c *rtnetlink.Conn, wires []wire, own []int) error {
	var want *rtnetlink.Route
	for i, w := range wires {
		gateway := f.gateway(w.Network)
		switch {
		case w.Network.Internal || !f.subnet(w.Network).IsValid() || want != nil:
		case f.route == unix.AF_INET6 && !w.Address6.IsValid() || f.route == unix.AF_INET && !w.Address.IsValid():
		case w.Network.routesItself(), gateway.IsValid():
			if w.Network.routesItself() {
				gateway = netip.Addr{}
			}
			route := rtnetlink.Default(own[i], f.route, gateway)
			want = &route
		}
	}
	routes, err := allRoutes(c, f)
	if err != nil {
		return err
	}
	there := false
	for _, r := range routes {
		switch {
		case !isDefault(r) || r.Type != unix.RTN_UNICAST:
		case want != nil && r.Link == want.Link && r.Gateway == want.Gateway:
			there = true
		case slices.Contains(own, r.Link):
			if err := c.RemoveRoute(r); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("cannot remove a default route: %w", err)
			}
		default:
			there = true
		}
	}
	if want == nil || there {
		return nil
	}
	if err := c.ReplaceRoute(*want); err != nil {
		return fmt.Errorf("cannot set the default route: %w", err)
	}
	return nil
}
