package network

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/contain"
)

// Options configures Networks.
type Options struct {
	RunDir string // holds netns/ and hosts/; usually lost at a reboot
	// StateDir identifies the owner of workloads, see the package comment. "": RunDir.
	StateDir   string
	ResolvConf string       // the host's; "" is /etc/resolv.conf
	Hosts      string       // the host's; "" is /etc/hosts
	Publish    Publish      // "": PublishFirewall
	Logger     *slog.Logger // nil: slog.Default
	// Contained is called for each panic that ended one DNS query and nothing else; nil: ignored.
	Contained func(what string, err error)
}

// Publish says who may use published ports.
type Publish string

const (
	// PublishFirewall: clients that the host's firewall lets in.
	PublishFirewall Publish = "firewall"
	// PublishOpen: everyone, whatever the host's firewall blocks for the host itself.
	PublishOpen Publish = "open"
)

// Networks manages networks, sandboxes and published ports; concurrent calls run in turn.
type Networks struct {
	owner      owner
	runDir     string
	resolvConf string
	hostsFile  string
	pools      []netip.Prefix // where subnets are taken from
	publish    Publish
	logger     *slog.Logger

	dns *dns

	heard atomic.Uint64 // how often something may have changed
	good  atomic.Uint64 // value of heard before the last look that found everything in order
	news  chan struct{} // wakes Run; holds one

	probing sync.Mutex // tests for free ports, which take the tested port for a moment

	filesMu sync.Mutex
	files   map[string]*sandboxFiles // by sandbox

	mu       sync.Mutex
	made     map[string]Network               // since the start, by bridge
	synced   map[nftables.TableFamily]ruleset // as SyncPorts left the tables since the start; nil: it has not run
	ports    []Port                           // of the last SyncPorts, without those that collide with others
	networks []Network                        // of the last SyncPorts
	advice   string                           // last logged
	holder   *holder                          // of the watcher; nil: no watcher runs
}

// New prepares RunDir. It fails if another owner has sandboxes there.
func New(o Options) (*Networks, error) {
	n := &Networks{
		owner:      ownerOf(cmp.Or(o.StateDir, o.RunDir)),
		runDir:     o.RunDir,
		resolvConf: cmp.Or(o.ResolvConf, "/etc/resolv.conf"),
		hostsFile:  cmp.Or(o.Hosts, "/etc/hosts"),
		pools:      append(privatePools(), machinePool()),
		publish:    cmp.Or(o.Publish, PublishFirewall),
		logger:     cmp.Or(o.Logger, slog.Default()),
		files:      make(map[string]*sandboxFiles),
		made:       make(map[string]Network),
		news:       make(chan struct{}, 1),
	}
	n.heard.Store(1) // nothing has been checked yet
	n.dns = newDNS(n.resolvConf, n.logger, o.Contained)
	if n.publish != PublishFirewall && n.publish != PublishOpen {
		return nil, fmt.Errorf("cannot publish ports for %q: neither %s nor %s", n.publish, PublishFirewall, PublishOpen)
	}
	if err := n.owner.checkRunDir(n.runDir); err != nil {
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

// Network is one network on the device, as plain data that can be kept with a container.
type Network struct {
	// Name is the network's name on the device: equal names mean the same network.
	Name   string `json:"name"`
	Driver string `json:"driver,omitempty"` // macvlan, ipvlan; empty: bridge
	Parent string `json:"parent,omitempty"` // the host's link under a macvlan or ipvlan
	Mode   string `json:"mode,omitempty"`   // of macvlan and ipvlan
	Bridge string `json:"bridge,omitempty"` // the name of our link on the host

	NoIPv4   bool         `json:"noIPv4,omitempty"` // Choose gives it no IPv4 subnet
	Subnet   netip.Prefix `json:"subnet"`           // zero: without IPv4
	Gateway  netip.Addr   `json:"gateway"`          // the bridge's own address; for macvlan and ipvlan a router's, or none
	Subnet6  netip.Prefix `json:"subnet6"`          // zero: without IPv6
	Gateway6 netip.Addr   `json:"gateway6"`

	Internal bool `json:"internal,omitempty"` // no way out
	Unmasked bool `json:"unmasked,omitempty"` // packets leave with the container's own address
	Apart    bool `json:"apart,omitempty"`    // its sandboxes do not reach each other
	MTU      int  `json:"mtu,omitempty"`      // 0: that of the way out
}

const (
	driverBridge  = "bridge"
	driverMacvlan = "macvlan"
	driverIPvlan  = "ipvlan"
)

func (w Network) contains(a netip.Addr) bool { return w.Subnet.Contains(a) || w.Subnet6.Contains(a) }

func (w Network) isBridge() bool { return w.Driver == "" || w.Driver == driverBridge }

func (n *Networks) ensureNetwork(at *survey, w Network) error {
	ensure := n.owner.ensureParent
	if w.isBridge() {
		ensure = n.owner.ensureBridge
	}
	err := w.check()
	if err == nil {
		err = ensure(at, w)
	}
	if err == nil && !at.looking {
		n.made[w.Bridge] = w
	}
	return err
}

// alias marks a link of the network inside a sandbox.
func (w Network) alias() string { return aliasPrefix + marked(w.Name) }

func (o owner) ensureBridge(at *survey, w Network) error {
	if err := at.list(); err != nil {
		return err
	}
	bridge := at.links[w.Bridge]
	if bridge == nil {
		if err := at.change("bridge "+w.Bridge+" is gone", "add bridge "+w.Bridge, func() (err error) {
			// Otherwise the bridge would take over a port's address, and change it when the port goes.
			added := &netlink.Bridge{LinkAttrs: linkAttrs(w.Bridge)}
			added.HardwareAddr = w.hardwareAddr()
			if err := at.c.LinkAdd(added); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			bridge, err = mustFindLink(at.c, w.Bridge)
			at.links[w.Bridge] = bridge
			return err
		}); err != nil {
			return err
		}
	}
	if bridge.Type() != kindBridge {
		return fmt.Errorf("link %s is not a bridge but a %s", w.Bridge, bridge.Type())
	}
	if err := o.ensureMark(at, bridge, w.Name); err != nil {
		return err
	}
	if err := at.ensureHardwareAddr(bridge, w.hardwareAddr()); err != nil {
		return err
	}
	if err := at.ensureMTU(bridge, w.mtu(cmp.Or(at.uplink, bridge.Attrs().MTU))); err != nil {
		return err
	}
	if err := at.switchIPv6(w.Bridge, w.Subnet6.IsValid()); err != nil {
		return err
	}
	// For published ports at 127.0.0.1. The rules drop what containers send to 127.0.0.0/8.
	if err := at.ensureSysctl("net/ipv4/conf/"+w.Bridge+"/route_localnet", "1"); err != nil {
		return err
	}
	addresses := w.prefixes(w.Gateway, w.Gateway6)
	if err := at.ensureAddresses(bridge, addresses); err != nil {
		return err
	}
	if err := at.ensureUp(bridge); err != nil {
		return err
	}
	return at.ensureRoutes(bridge, addresses)
}

func (w Network) mtu(uplink int) int {
	mtu := cmp.Or(w.MTU, uplink)
	if w.Subnet6.IsValid() {
		mtu = max(mtu, minMTU6)
	}
	return mtu
}

// prefixes returns the valid addresses with the length of the network's subnets.
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

// withLinks calls f with links, addresses and routes of the thread's network namespace.
func withLinks(f func(c *netlink.Handle) error) error { return withHandle(unix.NETLINK_ROUTE, f) }

// withHandle calls f with a handle for one part of the kernel. Containers may have made
// what is read there, and the library's decoders trust it: a panic is returned as an error.
func withHandle(protocol int, f func(c *netlink.Handle) error) error {
	c, err := netlink.NewHandle(protocol)
	if err != nil {
		return fmt.Errorf("cannot open netlink: %w", err)
	}
	defer c.Close()
	if err := c.SetSocketTimeout(patience); err != nil {
		return fmt.Errorf("cannot open netlink: %w", err)
	}
	return contain.Call(func() error { return f(c) })
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, _ := netip.AddrFromSlice(n.IP)
	bits, length := n.Mask.Size()
	if length == 8*net.IPv4len {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, bits)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

const (
	kindBridge = "bridge"
	kindVeth   = "veth"
)

// linkAttrs are the attributes of a new link; the kernel chooses what is not set.
func linkAttrs(name string) netlink.LinkAttrs {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return attrs
}

// mustFindLink fails with unix.ENODEV if there is no such link.
func mustFindLink(c *netlink.Handle, name string) (netlink.Link, error) {
	link, err := c.LinkByName(name)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		err = unix.ENODEV
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find link %s: %w", name, err)
	}
	return link, nil
}

func removeLink(c *netlink.Handle, link netlink.Link) error {
	if err := c.LinkDel(link); err != nil && !isGone(err) {
		return fmt.Errorf("cannot remove link %s: %w", link.Attrs().Name, err)
	}
	return nil
}
