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

// Options says where the package keeps its files, and what published ports have to
// do with the host's firewall.
type Options struct {
	RunDir string // holds netns/ and hosts/; gone after a reboot, as a rule
	// StateDir is the directory by which the owner of workloads is known: what is
	// made on the device is marked with it, and that of others left alone. "": RunDir.
	StateDir   string
	ResolvConf string       // the host's; "" is /etc/resolv.conf
	Hosts      string       // the host's; "" is /etc/hosts
	Publish    Publish      // "": PublishFirewall
	Logger     *slog.Logger // nil: slog.Default
	// Contained is told of each panic that ended one question for a name and
	// nothing else; nil: nobody is.
	Contained func(what string, err error)
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
	owner      owner
	runDir     string
	resolvConf string
	hostsFile  string
	pools      []netip.Prefix // where subnets are taken from
	publish    Publish
	logger     *slog.Logger

	dns *dns

	heard atomic.Uint64 // how often something may have changed
	good  atomic.Uint64 // heard as it was before everything was last found in order
	news  chan struct{} // that Run has to look at; holds one

	probing sync.Mutex // whether a port is free: one that is looked at is taken for a moment

	filesMu sync.Mutex
	files   map[string]*sandboxFiles // by sandbox

	mu       sync.Mutex
	made     map[string]Network               // since the start, by bridge
	synced   map[nftables.TableFamily]ruleset // as SyncPorts left the tables since the start; nil: it did not run
	ports    []Port                           // that SyncPorts got last, less those that contradict others
	networks []Network                        // that it got last
	advice   string                           // that was logged last
	holder   *holder                          // of the watcher; nil: nobody watches
}

// New prepares RunDir.
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
	n.heard.Store(1) // nobody looked yet
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

// contains says whether the address is one of the network's.
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

// alias marks a link of the network inside of a sandbox.
func (w Network) alias() string { return aliasPrefix + marked(w.Name) }

func (o owner) ensureBridge(at *survey, w Network) error {
	if err := at.list(); err != nil {
		return err
	}
	bridge := at.links[w.Bridge]
	if bridge == nil {
		if err := at.change("bridge "+w.Bridge+" is gone", "add bridge "+w.Bridge, func() (err error) {
			// Without an address of its own the bridge would take over that of a
			// port, and change it when the port goes.
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
	// Lets the host reach published ports by 127.0.0.1. What containers send
	// to 127.0.0.0/8 is dropped by the rules.
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

// mtu is that of the network's bridge.
func (w Network) mtu(uplink int) int {
	mtu := cmp.Or(w.MTU, uplink)
	if w.Subnet6.IsValid() {
		mtu = max(mtu, minMTU6)
	}
	return mtu
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

// withLinks calls f with a handle for the links, addresses and routes of the
// network namespace that this thread is in.
func withLinks(f func(c *netlink.Handle) error) error { return withHandle(unix.NETLINK_ROUTE, f) }

// withHandle calls f with a handle for one part of the kernel. What is read there
// a container may have made, and the library's decoders trust it: a panic is the
// error.
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

// prefixOf is the zero value where there is none.
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

// The kinds of links that are told apart.
const (
	kindBridge = "bridge"
	kindVeth   = "veth"
)

// linkAttrs are those of a link to be made; what is not set is left to the kernel.
func linkAttrs(name string) netlink.LinkAttrs {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return attrs
}

// mustFindLink fails with unix.ENODEV where there is no such link.
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
