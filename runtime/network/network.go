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
	"sync"

	"github.com/vishvananda/netlink"
)

// Options says where the package keeps its files and which addresses it may
// give away.
type Options struct {
	RunDir     string         // holds netns/ and hosts/; gone after a reboot, as a rule
	ResolvConf string         // the host's; "" is /etc/resolv.conf
	Pools      []netip.Prefix // where subnets are taken from; empty: DefaultPools
	Logger     *slog.Logger   // nil: slog.Default
}

// Networks makes and removes networks, sandboxes and published ports. Its
// methods may be called from several goroutines; they do their work one after
// the other.
type Networks struct {
	runDir     string
	resolvConf string
	pools      []netip.Prefix
	logger     *slog.Logger

	mu          sync.Mutex
	flowsPurged bool // stale connections were looked for since the start
}

// New prepares RunDir.
func New(o Options) (*Networks, error) {
	n := &Networks{runDir: o.RunDir, resolvConf: o.ResolvConf, pools: o.Pools, logger: o.Logger}
	if n.resolvConf == "" {
		n.resolvConf = "/etc/resolv.conf"
	}
	if len(n.pools) == 0 {
		n.pools = DefaultPools()
	}
	if n.logger == nil {
		n.logger = slog.Default()
	}
	if err := checkPools(n.pools); err != nil {
		return nil, err
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

// Network is one network of a project. It is plain data that survives JSON, so
// that it can be kept in a container's labels.
type Network struct {
	Project string       `json:"project"`
	Name    string       `json:"name"`
	Bridge  string       `json:"bridge"`
	Subnet  netip.Prefix `json:"subnet"`
	Gateway netip.Addr   `json:"gateway"` // the bridge's own address
}

// EnsureNetwork makes the bridge of the network, or repairs it. Its rules come
// with [Networks.SyncPorts], which has to run before a container starts.
func (n *Networks) EnsureNetwork(ctx context.Context, w Network) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := errors.Join(ctx.Err(), w.check()); err != nil {
		return fmt.Errorf("cannot set up network %q of project %q: %w", w.Name, w.Project, err)
	}
	if err := ensureBridge(w); err != nil {
		return fmt.Errorf("cannot set up network %q of project %q: %w", w.Name, w.Project, err)
	}
	return nil
}

func ensureBridge(w Network) error {
	mtu, err := uplinkMTU()
	if err != nil {
		return err
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
		attrs.HardwareAddr = hardwareAddr(w.Gateway)
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
	if alias := "margolite " + w.Project + "/" + w.Name; bridge.Attrs().Alias != alias {
		// For people who look at the links only.
		_ = netlink.LinkSetAlias(bridge, alias)
	}
	if err := ensureLink(bridge, hardwareAddr(w.Gateway), mtu); err != nil {
		return err
	}
	if err := switchOffIPv6(w.Bridge); err != nil {
		return err
	}
	// Lets the host reach published ports by 127.0.0.1. What containers send
	// to 127.0.0.0/8 is dropped by the rules.
	if err := setSysctl("net/ipv4/conf/"+w.Bridge+"/route_localnet", "1"); err != nil {
		return err
	}
	if err := ensureAddress(bridge, netip.PrefixFrom(w.Gateway, w.Subnet.Bits())); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("cannot set bridge %s up: %w", w.Bridge, err)
	}
	return nil
}

// RemoveNetwork removes the bridge. Links that are still attached to it stay.
func (n *Networks) RemoveNetwork(ctx context.Context, w Network) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := ctx.Err()
	if err == nil && !isLinkName(bridgePrefix, w.Bridge) {
		err = fmt.Errorf("%q is not the name of a bridge of ours", w.Bridge)
	}
	if err == nil {
		err = removeLink(w.Bridge)
	}
	if err != nil {
		return fmt.Errorf("cannot remove network %q of project %q: %w", w.Name, w.Project, err)
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

// ensureAddress leaves the link with this IPv4 address and no other.
func ensureAddress(link netlink.Link, want netip.Prefix) error {
	name := link.Attrs().Name
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("cannot list addresses of %s: %w", name, err)
	}
	found := false
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok && p == want {
			found = true
			continue
		}
		if err := netlink.AddrDel(link, &a); err != nil {
			return fmt.Errorf("cannot remove address %s from %s: %w", a.IPNet, name, err)
		}
	}
	if found {
		return nil
	}
	ip := want.Addr().AsSlice()
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(want.Bits(), 32)}}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("cannot add address %s to %s: %w", want, name, err)
	}
	return nil
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones), ok
}
