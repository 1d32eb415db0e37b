package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/google/nftables"
	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Options says where the package keeps its files, which addresses it may give
// away, and what published ports have to do with the host's firewall.
type Options struct {
	RunDir     string // holds netns/ and hosts/; gone after a reboot, as a rule
	ResolvConf string // the host's; "" is /etc/resolv.conf
	Hosts      string // the host's; "" is /etc/hosts
	// Pools are where subnets are taken from; those of a family that has none
	// here come from DefaultPools, and for IPv6 from a range of the machine's.
	Pools   []netip.Prefix
	Publish Publish      // "": PublishFirewall
	Logger  *slog.Logger // nil: slog.Default
}

// Publish says who may use published ports.
type Publish string

const (
	// PublishFirewall are those whose packets the host's firewall lets in.
	PublishFirewall Publish = "firewall"
	// PublishOpen is everybody, whatever the host's firewall closes to itself.
	PublishOpen Publish = "open"
)

// Networks makes and removes networks, sandboxes and published ports. Its
// methods may be called from several goroutines; they do their work one after
// the other.
type Networks struct {
	runDir     string
	resolvConf string
	hostsFile  string
	pools      []netip.Prefix
	publish    Publish
	logger     *slog.Logger

	dns *dns

	mu     sync.RWMutex
	synced map[nftables.TableFamily]ruleset // as SyncPorts left the tables since the start
	advice string                           // that was logged last
	holder *mdlayher.Conn                   // of the watcher; nil: nobody watches
	held   []nftables.TableFamily           // whose table of the holder is there
}

// New prepares RunDir.
func New(o Options) (*Networks, error) {
	n := &Networks{
		runDir: o.RunDir, resolvConf: o.ResolvConf, hostsFile: o.Hosts, pools: o.Pools, publish: o.Publish, logger: o.Logger,
		synced: make(map[nftables.TableFamily]ruleset),
	}
	if n.resolvConf == "" {
		n.resolvConf = "/etc/resolv.conf"
	}
	if n.hostsFile == "" {
		n.hostsFile = "/etc/hosts"
	}
	if !slices.ContainsFunc(n.pools, func(p netip.Prefix) bool { return p.Addr().Is4() }) {
		n.pools = slices.Concat(n.pools, DefaultPools())
	}
	if !slices.ContainsFunc(n.pools, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		n.pools = append(slices.Clone(n.pools), machinePool())
	}
	if n.publish == "" {
		n.publish = PublishFirewall
	}
	if n.logger == nil {
		n.logger = slog.Default()
	}
	n.dns = newDNS(n.resolvConf, n.logger)
	if err := checkPools(n.pools); err != nil {
		return nil, err
	}
	if n.publish != PublishFirewall && n.publish != PublishOpen {
		return nil, fmt.Errorf("cannot publish ports for %q: neither %s nor %s", n.publish, PublishFirewall, PublishOpen)
	}
	for _, dir := range []string{n.netnsDir(), n.hostsDir()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("cannot prepare the run directory: %w", err)
		}
	}
	return n, nil
}

func (n *Networks) netnsDir() string { return filepath.Join(n.runDir, "netns") }

func (n *Networks) hostsDir() string { return filepath.Join(n.runDir, "hosts") }

// Network is one network on the device. It is plain data that survives JSON, so
// that it can be kept with a container.
type Network struct {
	// Name is the network's name on the device: who gives the same name is on
	// the same network.
	Name   string `json:"name"`
	Driver string `json:"driver,omitempty"` // macvlan, ipvlan; empty: bridge
	Parent string `json:"parent,omitempty"` // the link of the host that macvlan and ipvlan sit on
	Mode   string `json:"mode,omitempty"`   // of macvlan and ipvlan
	Bridge string `json:"bridge,omitempty"` // the name of our link of the host

	NoIPv4   bool         `json:"noIPv4,omitempty"` // Choose gives it no IPv4 subnet
	Subnet   netip.Prefix `json:"subnet"`           // zero: without IPv4
	Gateway  netip.Addr   `json:"gateway"`          // the bridge's own address; with macvlan and ipvlan that of a router, or none
	Subnet6  netip.Prefix `json:"subnet6"`          // zero: without IPv6
	Gateway6 netip.Addr   `json:"gateway6"`

	Internal bool `json:"internal,omitempty"` // without a way out
	Unmasked bool `json:"unmasked,omitempty"` // packets leave with the container's own address
	Apart    bool `json:"apart,omitempty"`    // its sandboxes do not reach each other
	MTU      int  `json:"mtu,omitempty"`      // 0: that of the way out
}

// The drivers of networks.
const (
	driverBridge  = "bridge"
	driverMacvlan = "macvlan"
	driverIPvlan  = "ipvlan"
)

func (w Network) isBridge() bool { return w.Driver == "" || w.Driver == driverBridge }

// EnsureNetwork makes the link of the network, or repairs it. Its rules come
// with [Networks.SyncPorts], which has to run before a container starts.
func (n *Networks) EnsureNetwork(ctx context.Context, w Network) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := errors.Join(ctx.Err(), w.check())
	switch {
	case err != nil:
	case w.isBridge():
		err = ensureBridge(w)
	default:
		err = ensureParent(w)
	}
	if err != nil {
		return fmt.Errorf("cannot set up network %s: %w", w.Name, err)
	}
	return nil
}

// alias marks a link of the network, for people and for finding it again.
func (w Network) alias() string { return aliasPrefix + w.Name }

func ensureBridge(w Network) error {
	mtu := w.MTU
	if mtu == 0 {
		var err error
		if mtu, err = uplinkMTU(); err != nil {
			return err
		}
	}
	if w.Subnet6.IsValid() {
		mtu = max(mtu, minMTU6)
	}
	bridge, err := findLink(w.Bridge)
	if err != nil {
		return err
	}
	if bridge == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = w.Bridge
		// Without an address of its own the bridge would take over that of a
		// port, and change it when the port goes.
		attrs.HardwareAddr = w.hardwareAddr()
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("cannot add bridge %s: %w", w.Bridge, err)
		}
		if bridge, err = netlink.LinkByName(w.Bridge); err != nil {
			return fmt.Errorf("cannot find bridge %s: %w", w.Bridge, err)
		}
	}
	if bridge.Type() != "bridge" {
		return fmt.Errorf("link %s is no bridge but a %s", w.Bridge, bridge.Type())
	}
	if bridge.Attrs().Alias != w.alias() {
		// For people who look at the links only.
		_ = netlink.LinkSetAlias(bridge, w.alias())
	}
	if err := ensureLink(bridge, w.hardwareAddr(), mtu); err != nil {
		return err
	}
	if err := switchIPv6(w.Bridge, w.Subnet6.IsValid()); err != nil {
		return err
	}
	// Lets the host reach published ports by 127.0.0.1. What containers send
	// to 127.0.0.0/8 is dropped by the rules.
	if err := setSysctl("net/ipv4/conf/"+w.Bridge+"/route_localnet", "1"); err != nil {
		return err
	}
	if err := ensureAddresses(bridge, w.prefixes(w.Gateway, w.Gateway6)); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("cannot set bridge %s up: %w", w.Bridge, err)
	}
	return nil
}

// prefixes are addresses with the length of the network's subnets; those that
// are none are left out.
func (w Network) prefixes(addrs ...netip.Addr) []netip.Prefix {
	var all []netip.Prefix
	for _, a := range addrs {
		switch {
		case !a.IsValid():
		case a.Is4():
			all = append(all, netip.PrefixFrom(a, w.Subnet.Bits()))
		default:
			all = append(all, netip.PrefixFrom(a, w.Subnet6.Bits()))
		}
	}
	return all
}

// RemoveNetwork removes the link of the network. Links that are still attached
// to a bridge stay.
func (n *Networks) RemoveNetwork(ctx context.Context, w Network) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := ctx.Err()
	if err == nil && !isLinkName(bridgePrefix, w.Bridge) {
		err = fmt.Errorf("%q is not the name of a link of ours", w.Bridge)
	}
	if err == nil {
		err = removeLink(w.Bridge)
	}
	if err == nil && !w.isBridge() {
		err = removeParent(w)
	}
	if err != nil {
		return fmt.Errorf("cannot remove network %s: %w", w.Name, err)
	}
	return nil
}

// findLink returns nil where there is no such link.
func findLink(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find link %s: %w", name, err)
	}
	return link, nil
}

func removeLink(name string) error {
	link, err := findLink(name)
	if link == nil {
		return err
	}
	if err := netlink.LinkDel(link); err != nil && !isGone(err) {
		return fmt.Errorf("cannot remove link %s: %w", name, err)
	}
	return nil
}

// ensureLink gives the link its hardware address, unless that is nil, and the
// MTU.
func ensureLink(link netlink.Link, mac net.HardwareAddr, mtu int) error {
	attrs := link.Attrs()
	if mac != nil && !bytes.Equal(attrs.HardwareAddr, mac) {
		if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
			return fmt.Errorf("cannot set hardware address of %s: %w", attrs.Name, err)
		}
	}
	if attrs.MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("cannot set MTU of %s: %w", attrs.Name, err)
		}
	}
	return nil
}

// ensureAddresses leaves the link with these addresses and no other, save the
// link-local ones of IPv6, which the kernel makes.
func ensureAddresses(link netlink.Link, want []netip.Prefix) error {
	name := link.Attrs().Name
	addrs, err := complete(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("cannot list addresses of %s: %w", name, err)
	}
	missing := slices.Clone(want)
	for _, a := range addrs {
		p, ok := prefixOf(a.IPNet)
		if i := slices.Index(missing, p); ok && i >= 0 {
			missing = slices.Delete(missing, i, i+1)
			continue
		}
		if p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if err := netlink.AddrDel(link, &a); err != nil {
			return fmt.Errorf("cannot remove address %s from %s: %w", a.IPNet, name, err)
		}
	}
	for _, p := range missing {
		addr := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			// We give it away once: nobody has to be asked whether it is free.
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("cannot add address %s to %s: %w", p, name, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones), ok
}
