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

type wire struct {
	Attachment
	mac   net.HardwareAddr // nil: the parent's
	mtu   int
	owner owner
	on    netlink.Link // the bridge, or the parent of a macvlan or ipvlan
	name  string       // of the host's end of the veth pair; "": not a veth pair
	outer netlink.Link // that end; nil: missing
	inner string       // the name of the sandbox's end
	whole bool         // the sandbox's end exists
}

// ensureLinks connects the namespace to its networks and to no others. When looking for
// damage it checks the host only: inside, the container decides, and a visit takes a thread.
func (o owner) ensureLinks(at *survey, s Sandbox, netns string) error {
	wires, err := o.wiresOf(at, s)
	if err != nil {
		return err
	}
	if err := o.removeOuter(at, s, wires); err != nil {
		return err
	}
	whole := at.looking
	if at.looking {
		for i := range wires {
			wires[i].whole = wires[i].outer != nil || !wires[i].Network.isBridge()
		}
	} else if err := insideLinks(netns, func(c *netlink.Handle) error {
		err := matchInner(c, wires)
		if whole = !slices.ContainsFunc(wires, func(w wire) bool { return !w.whole }); err != nil || !whole {
			return err
		}
		return ensureInner(c, wires) // saves another visit: each needs a thread of its own
	}); err != nil {
		return err
	}
	for i := range wires {
		if err := wires[i].ensure(at, netns); err != nil {
			return err
		}
	}
	// The inner ends come up first: once there is a carrier, everything is in place.
	if !whole {
		if err := insideLinks(netns, func(c *netlink.Handle) error { return ensureInner(c, wires) }); err != nil {
			return err
		}
	}
	for _, w := range wires {
		if w.outer == nil {
			continue
		}
		if err := at.ensureUp(w.outer); err != nil {
			return err
		}
	}
	return nil
}

const insideAttempts = 5

// insideLinks runs f with the links of a namespace, several times if undisturbed has to.
func insideLinks(netns string, f func(c *netlink.Handle) error) error {
	return inside(netns, func() error { return undisturbed(insideAttempts, f) })
}

// undisturbed retries f, which must be safe to repeat. A container that may change its
// network can send to any netlink socket there, and the library takes such a message for an
// error of the kernel; it hides the socket, so we cannot connect it to the kernel. The first
// handle usually has the agent's process ID as its port. It stays open, so that the next
// one gets a port that cannot be guessed.
func undisturbed(attempts int, f func(c *netlink.Handle) error) error {
	return withLinks(func(c *netlink.Handle) error {
		err := f(c)
		if err != nil && attempts > 1 {
			err = undisturbed(attempts-1, f)
		}
		return err
	})
}

func (o owner) wiresOf(at *survey, s Sandbox) ([]wire, error) {
	wires := make([]wire, len(s.Attached))
	for i, name := range s.links(o) {
		w := wire{Attachment: s.Attached[i], name: name, owner: o, outer: at.links[name]}
		network := w.Network
		on := network.Bridge
		if !network.isBridge() {
			on = network.Parent
		}
		if w.on = at.links[on]; w.on == nil {
			return nil, fmt.Errorf("network %s: cannot find link %s: %w", network.Name, on, unix.ENODEV)
		}
		if w.mtu = w.on.Attrs().MTU; !network.isBridge() && network.MTU > 0 {
			w.mtu = min(w.mtu, network.MTU)
		}
		var err error
		if w.mac, err = w.hardwareAddr(); err != nil {
			return nil, err
		}
		wires[i] = w
	}
	return wires, nil
}

// removeOuter removes the replica's links on the host except these.
func (o owner) removeOuter(at *survey, s Sandbox, keep []wire) (err error) {
	prefix := s.linkPrefix(o)
	for name, link := range at.links {
		ours := strings.HasPrefix(name, prefix) && isLinkName(vethPrefix, name) && !o.isOthers(link)
		if ours && !slices.ContainsFunc(keep, func(w wire) bool { return w.name == name }) {
			err = errors.Join(err, at.change("link "+name+" is not wanted", "clean up", func() error { return removeLink(at.c, link) }))
		}
	}
	return err
}

// matchInner finds the sandbox's ends of the wires, names missing ones, and removes links in
// their way. Links of other names are the container's. It runs in the namespace.
func matchInner(c *netlink.Handle, wires []wire) error {
	ends, err := innerEnds(wires)
	if err != nil {
		return err
	}
	names := make(map[string]bool) // already taken
	for _, w := range wires {
		if w.Interface != "" {
			names[w.Interface] = true
		}
	}
	for i := range wires {
		w := &wires[i]
		w.whole = false // it may be from an earlier attempt
		at := slices.IndexFunc(ends, w.isInner)
		if at < 0 {
			continue
		}
		name := ends[at].Attrs().Name
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

// innerEnds lists the sandbox's ends of wires. It runs in the namespace.
func innerEnds(wires []wire) ([]netlink.Link, error) {
	return allLinks(func(link netlink.Link) bool {
		return slices.ContainsFunc(wires, func(w wire) bool { return w.isInner(link) })
	})
}

// removeInner removes links in the wires' way, and links of ours for no wire, from inside.
func removeInner(c *netlink.Handle, keep []wire) error {
	links, err := allLinks(func(link netlink.Link) bool {
		name := link.Attrs().Name
		marked := strings.HasPrefix(link.Attrs().Alias, aliasPrefix) && (link.Type() == driverMacvlan || link.Type() == driverIPvlan)
		whole := slices.ContainsFunc(keep, func(w wire) bool { return w.whole && w.inner == name })
		inTheWay := slices.ContainsFunc(keep, func(w wire) bool { return w.inner == name || w.isInner(link) })
		return (marked || inTheWay) && !whole
	})
	for _, link := range links {
		err = errors.Join(err, removeLink(c, link))
	}
	return err
}

const linkStem = "eth"

func numbered(i int) string { return linkStem + strconv.Itoa(i) }

func isNumbered(name string) bool {
	digits, ok := strings.CutPrefix(name, linkStem)
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

func (w wire) isInner(link netlink.Link) bool {
	if w.Network.isBridge() {
		return w.outer != nil && arePeers(w.outer, link)
	}
	want, err := newLink(w.Network, netlink.LinkAttrs{})
	return err == nil && link.Attrs().Alias == w.Network.alias() && link.Attrs().ParentIndex == w.on.Attrs().Index &&
		sameKind(link, want)
}

func arePeers(outer, inner netlink.Link) bool {
	return outer.Type() == kindVeth && inner.Type() == kindVeth &&
		outer.Attrs().ParentIndex == inner.Attrs().Index && inner.Attrs().ParentIndex == outer.Attrs().Index
}

func (w *wire) ensure(at *survey, netns string) error {
	isNew := !w.whole
	if isNew {
		if err := at.change("link "+w.name+" is gone", "connect "+w.inner, func() error { return w.make(at.c, netns) }); err != nil {
			return err
		}
	}
	if !w.Network.isBridge() {
		return nil
	}
	if err := w.owner.ensureMark(at, w.outer, w.Network.Name); err != nil {
		return err
	}
	if err := at.ensureMTU(w.outer, w.mtu); err != nil {
		return err
	}
	if w.outer.Attrs().MasterIndex != w.on.Attrs().Index {
		if err := at.change(fmt.Sprintf("link %s is not a port of bridge %s", w.name, w.Network.Bridge),
			fmt.Sprintf("attach %s to bridge %s", w.name, w.Network.Bridge),
			func() error { return at.c.LinkSetMaster(w.outer, w.on) }); err != nil {
			return err
		}
	}
	// The port of a bridge needs no address, not even a link-local one.
	if err := at.switchIPv6(w.name, false); err != nil {
		return err
	}
	if at.looking { // older kernels do not report all of the following
		return nil
	}
	if err := w.ensurePort(at.c, isNew); err != nil {
		return fmt.Errorf("cannot set up %s as a port of bridge %s: %w", w.name, w.Network.Bridge, err)
	}
	return nil
}

// ensurePort writes only what differs, because each write notifies everyone who watches
// links. It does not read a new port: the kernel would list all ports for it.
func (w *wire) ensurePort(c *netlink.Handle, isNew bool) (err error) {
	var port netlink.Protinfo
	if !isNew {
		port, err = steady("ports", func() (netlink.Protinfo, error) { return c.LinkGetProtinfo(w.outer) })
	}
	// For a container's calls of its own published port: the frame comes back through its port.
	if err == nil && !port.Hairpin {
		err = c.LinkSetHairpin(w.outer, true)
	}
	// Kernels before 4.18 ignore this.
	if err == nil && port.Isolated != w.Network.Apart {
		err = c.LinkSetIsolated(w.outer, w.Network.Apart)
	}
	return err
}

// make first removes a host's end without the other, or with one in an old namespace.
func (w *wire) make(c *netlink.Handle, netns string) error {
	ns, err := os.Open(netns)
	if err != nil {
		return fmt.Errorf("cannot open namespace: %w", err)
	}
	defer ns.Close()
	if !w.Network.isBridge() {
		attrs := linkAttrs(w.inner)
		attrs.Namespace, attrs.ParentIndex = netlink.NsFd(ns.Fd()), w.on.Attrs().Index
		attrs.HardwareAddr, attrs.MTU = w.mac, w.mtu
		link, err := newLink(w.Network, attrs)
		if err != nil {
			return err
		}
		if err := c.LinkAdd(link); err != nil {
			return fmt.Errorf("cannot add %s %s on %s: %w", w.Network.Driver, w.inner, w.Network.Parent, err)
		}
		return nil
	}
	if w.outer != nil {
		if err := removeLink(c, w.outer); err != nil {
			return err
		}
	}
	pair := netlink.NewVeth(linkAttrs(w.name))
	pair.MTU, pair.PeerMTU, pair.MasterIndex = w.mtu, uint32(w.mtu), w.on.Attrs().Index
	pair.PeerName, pair.PeerHardwareAddr, pair.PeerNamespace = w.inner, w.mac, netlink.NsFd(ns.Fd())
	if err := c.LinkAdd(pair); err != nil {
		return fmt.Errorf("cannot add veth pair %s to bridge %s: %w", w.name, w.Network.Bridge, err)
	}
	w.outer, err = mustFindLink(c, w.name)
	return err
}

// ensureInner runs in the namespace.
func ensureInner(c *netlink.Handle, wires []wire) error {
	at := &survey{c: c}
	v6 := slices.ContainsFunc(wires, wire.hasIPv6)
	for _, link := range []string{"all", "default"} {
		if err := at.switchIPv6(link, v6); err != nil {
			return err
		}
	}
	// Images expect that low ports and ping need no privilege. Kernels without these keys are fine.
	_ = setSysctl("net/ipv4/ip_unprivileged_port_start", "0")
	_ = setSysctl("net/ipv4/ping_group_range", "0\t2147483647")

	lo, err := mustFindLink(c, "lo")
	if err != nil {
		return err
	}
	if err := at.ensureUp(lo); err != nil {
		return err
	}
	if at.addresses, err = addresses(c, netlink.FAMILY_ALL); err != nil {
		return err
	}
	own := make([]int, len(wires)) // link indexes
	for i, w := range wires {
		if own[i], err = w.ensureInner(at); err != nil {
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

func (w wire) ensureInner(at *survey) (int, error) {
	link, err := mustFindLink(at.c, w.inner)
	if err != nil {
		return 0, err
	}
	if !w.Network.isBridge() && link.Attrs().Alias != w.Network.alias() {
		if err := at.c.LinkSetAlias(link, w.Network.alias()); err != nil {
			return 0, fmt.Errorf("cannot mark link %s: %w", w.inner, err)
		}
	}
	if err := errors.Join(at.ensureHardwareAddr(link, w.mac), at.ensureMTU(link, w.mtu)); err != nil {
		return 0, err
	}
	if err := at.switchIPv6(w.inner, w.hasIPv6()); err != nil {
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
	if err := at.ensureAddresses(link, addrs); err != nil {
		return 0, err
	}
	for _, setting := range w.Sysctls {
		if err := at.ensureSysctl(linkSysctl(setting, w.inner)); err != nil {
			return 0, err
		}
	}
	return link.Attrs().Index, at.ensureUp(link)
}

// ensureDefaultRoute leads out by the first wire that can, and leaves the container's routes.
func (f *family) ensureDefaultRoute(c *netlink.Handle, wires []wire, own []int) error {
	var want *netlink.Route
	for i, w := range wires {
		gateway := f.gateway(w.Network)
		switch {
		case w.Network.Internal || !f.subnet(w.Network).IsValid() || want != nil:
		case f.route == unix.AF_INET6 && !w.Address6.IsValid() || f.route == unix.AF_INET && !w.Address.IsValid():
		case w.Network.routesItself(), gateway.IsValid():
			want = &netlink.Route{Dst: ipNet(netip.PrefixFrom(f.unspecified, 0)), LinkIndex: own[i], Gw: gateway.AsSlice()}
			if w.Network.routesItself() {
				want.Gw, want.Scope = nil, netlink.SCOPE_LINK
			}
		}
	}
	there := false
	wrong, err := allRoutes(c, f, func(r netlink.Route) bool {
		if prefixOf(r.Dst).Bits() != 0 || r.Table != unix.RT_TABLE_MAIN || r.Type != unix.RTN_UNICAST {
			return false
		}
		wanted := want != nil && r.LinkIndex == want.LinkIndex && r.Gw.Equal(want.Gw)
		there = there || wanted || !slices.Contains(own, r.LinkIndex)
		return !wanted && slices.Contains(own, r.LinkIndex)
	})
	if err != nil {
		return err
	}
	for _, r := range wrong {
		if err := c.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("cannot remove a default route: %w", err)
		}
	}
	if want == nil || there {
		return nil
	}
	if err := c.RouteReplace(want); err != nil {
		return fmt.Errorf("cannot set the default route: %w", err)
	}
	return nil
}
