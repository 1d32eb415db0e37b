package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
)

// Sandbox is the place of one service replica on the network.
type Sandbox struct {
	Project  string
	Service  string
	Number   int
	Network  Network
	Address  netip.Addr
	MAC      net.HardwareAddr // nil: derived from the address
	Hostname string
	Names    []string // further names the replica has for itself
}

// Paths are the files of a sandbox, for the container that joins it.
type Paths struct {
	NetNS      string // namespace to join
	Hosts      string // to be mounted at /etc/hosts
	ResolvConf string // to be mounted at /etc/resolv.conf
	Hostname   string // to be mounted at /etc/hostname

	// Fresh says that EnsureSandbox made the namespace just now: a container
	// that still runs for this replica sits in another one, cut off. It is said
	// once.
	Fresh bool
}

// Paths says where the files of the sandbox are, whether or not they exist.
func (n *Networks) Paths(s Sandbox) Paths {
	dir := filepath.Join(n.hostsDir(), s.file())
	return Paths{
		NetNS:      filepath.Join(n.netnsDir(), s.file()),
		Hosts:      filepath.Join(dir, "hosts"),
		ResolvConf: filepath.Join(dir, "resolv.conf"),
		Hostname:   filepath.Join(dir, "hostname"),
	}
}

// EnsureSandbox makes the sandbox and everything in it, or repairs it. The
// network has to be there. It also brings resolv.conf up to date with the
// host's, so it is worth calling again when the host's network changed.
func (n *Networks) EnsureSandbox(ctx context.Context, s Sandbox, hosts []Host) (Paths, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	paths := n.Paths(s)
	err := errors.Join(ctx.Err(), s.check())
	if err == nil {
		err = n.writeFiles(s, hosts)
	}
	if err == nil {
		paths.Fresh, err = ensurePin(paths.NetNS)
	}
	if err == nil {
		err = ensureVeth(s, paths.NetNS)
	}
	if err != nil {
		return Paths{}, fmt.Errorf("cannot set up sandbox of %s: %w", s, err)
	}
	return paths, nil
}

// String names the replica for messages.
func (s Sandbox) String() string {
	return fmt.Sprintf("replica %d of service %q of project %q", s.Number, s.Service, s.Project)
}

// ensureVeth connects the namespace with the bridge.
func ensureVeth(s Sandbox, netns string) error {
	bridge, err := netlink.LinkByName(s.Network.Bridge)
	if err != nil {
		return fmt.Errorf("cannot find bridge %s: %w", s.Network.Bridge, err)
	}
	mtu := bridge.Attrs().MTU
	mac := s.MAC
	if mac == nil {
		mac = hardwareAddr(s.Address)
	}
	outer, err := ensurePair(s.link(), netns, mac, mtu)
	if err != nil {
		return err
	}
	if err := ensureLink(outer, nil, mtu); err != nil {
		return err
	}
	// The port of a bridge needs no address, not even a link-local one.
	if err := switchOffIPv6(s.link()); err != nil {
		return err
	}
	if outer.Attrs().MasterIndex != bridge.Attrs().Index {
		if err := netlink.LinkSetMaster(outer, bridge); err != nil {
			return fmt.Errorf("cannot attach %s to bridge %s: %w", s.link(), s.Network.Bridge, err)
		}
	}
	// A container that calls its own published port gets the frame back
	// through the port it came from.
	if err := netlink.LinkSetHairpin(outer, true); err != nil {
		return fmt.Errorf("cannot set hairpin mode of %s: %w", s.link(), err)
	}
	// The inner end comes up first: once there is a carrier, all is in place.
	if err := inside(netns, func() error { return ensureInner(s, mac, mtu) }); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(outer); err != nil {
		return fmt.Errorf("cannot set %s up: %w", s.link(), err)
	}
	return nil
}

// ensurePair returns the host's end of a veth pair whose other end is in the
// namespace. An end without the other, or with one in a namespace of the past,
// is of no use and goes.
func ensurePair(name, netns string, mac net.HardwareAddr, mtu int) (netlink.Link, error) {
	outer, err := findLink(name)
	if err != nil {
		return nil, err
	}
	whole := false
	err = inside(netns, func() error {
		inner, err := findLink(innerLink)
		if inner == nil {
			return err
		}
		if whole = outer != nil && arePeers(outer, inner); whole {
			return nil
		}
		return removeLink(innerLink)
	})
	if err != nil || whole {
		return outer, err
	}
	if err := removeLink(name); err != nil {
		return nil, err
	}
	ns, err := os.Open(netns)
	if err != nil {
		return nil, fmt.Errorf("cannot open namespace: %w", err)
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	err = netlink.LinkAdd(&netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         innerLink,
		PeerHardwareAddr: mac,
		PeerNamespace:    netlink.NsFd(int(ns.Fd())),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot add veth pair %s: %w", name, err)
	}
	if outer, err = netlink.LinkByName(name); err != nil {
		return nil, fmt.Errorf("cannot find link %s: %w", name, err)
	}
	return outer, nil
}

func arePeers(outer, inner netlink.Link) bool {
	return outer.Type() == "veth" && inner.Type() == "veth" &&
		outer.Attrs().ParentIndex == inner.Attrs().Index &&
		inner.Attrs().ParentIndex == outer.Attrs().Index
}

// ensureInner sets up what is inside the namespace; it runs there.
func ensureInner(s Sandbox, mac net.HardwareAddr, mtu int) error {
	for _, link := range []string{"all", "default"} {
		if err := switchOffIPv6(link); err != nil {
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
	inner, err := netlink.LinkByName(innerLink)
	if err != nil {
		return fmt.Errorf("cannot find link %s: %w", innerLink, err)
	}
	if err := ensureLink(inner, mac, mtu); err != nil {
		return err
	}
	if err := ensureAddress(inner, netip.PrefixFrom(s.Address, s.Network.Subnet.Bits())); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(inner); err != nil {
		return fmt.Errorf("cannot set %s up: %w", innerLink, err)
	}
	route := &netlink.Route{LinkIndex: inner.Attrs().Index, Gw: s.Network.Gateway.AsSlice()}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("cannot set the default route: %w", err)
	}
	return nil
}

// RemoveSandbox removes the sandbox, also one that is only half there. Only
// what names the replica is looked at: project, service and number.
func (n *Networks) RemoveSandbox(ctx context.Context, s Sandbox) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := errors.Join(ctx.Err(), s.checkIdentity())
	if err == nil {
		// All of them are tried, whatever becomes of the others.
		err = errors.Join(removeLink(s.link()), n.removeFiles(s.file()))
	}
	if err != nil {
		return fmt.Errorf("cannot remove sandbox of %s: %w", s, err)
	}
	return nil
}

func (n *Networks) removeFiles(name string) error {
	err := removePin(filepath.Join(n.netnsDir(), name))
	if e := os.RemoveAll(filepath.Join(n.hostsDir(), name)); e != nil {
		err = errors.Join(err, fmt.Errorf("cannot remove hosts file: %w", e))
	}
	return err
}

// Leftovers removes the sandboxes and bridges that nobody keeps any more. They
// are known by their names.
func (n *Networks) Leftovers(ctx context.Context, keep []Sandbox, nets []Network) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := make(map[string]bool)
	for _, s := range keep {
		kept[s.link()], kept[s.file()] = true, true
	}
	for _, w := range nets {
		kept[w.Bridge] = true
	}
	err := ctx.Err()
	if err == nil {
		err = errors.Join(n.leftoverLinks(kept), n.leftoverFiles(kept))
	}
	if err != nil {
		return fmt.Errorf("cannot remove leftovers: %w", err)
	}
	return nil
}

func (n *Networks) leftoverLinks(kept map[string]bool) error {
	links, err := complete(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("cannot list links: %w", err)
	}
	for _, link := range links {
		name := link.Attrs().Name
		ours := link.Type() == "bridge" && isLinkName(bridgePrefix, name) ||
			link.Type() == "veth" && isLinkName(vethPrefix, name)
		if ours && !kept[name] {
			n.logger.Info("removing link that nobody keeps", "link", name)
			err = errors.Join(err, removeLink(name))
		}
	}
	return err
}

func (n *Networks) leftoverFiles(kept map[string]bool) error {
	var all error
	found := make(map[string]bool)
	for _, dir := range []string{n.netnsDir(), n.hostsDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			all = errors.Join(all, fmt.Errorf("cannot list sandboxes: %w", err))
		}
		for _, e := range entries {
			found[e.Name()] = true
		}
	}
	for name := range found {
		if !kept[name] {
			n.logger.Info("removing sandbox that nobody keeps", "sandbox", name)
			all = errors.Join(all, n.removeFiles(name))
		}
	}
	return all
}
