package network

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/vishvananda/netlink"
)

// Sandbox is the place of one service replica on the network. It is plain data
// that survives JSON, so that it can be kept with a container.
type Sandbox struct {
	Project string `json:"project"`
	Service string `json:"service"`
	Number  int    `json:"number"`
	// Host says that there is no namespace: the replica is on the host's own
	// network, and has files only.
	Host       bool         `json:"host,omitempty"`
	Attached   []Attachment `json:"attached,omitempty"` // the first has the default route; none: loopback alone
	Hostname   string       `json:"hostname,omitempty"`
	Domainname string       `json:"domainname,omitempty"`
	Names      []string     `json:"names,omitempty"` // further names the replica has for itself
	Extra      []Host       `json:"extra,omitempty"` // further lines of its hosts file
	Links      []Link       `json:"links,omitempty"` // names for other services that only this replica knows
	DNS        []netip.Addr `json:"dns,omitempty"`   // instead of the host's nameservers
	DNSSearch  []string     `json:"dnsSearch,omitempty"`
	DNSOptions []string     `json:"dnsOptions,omitempty"`
}

// Link is one more name for a service of the same project.
type Link struct {
	Service string `json:"service"`
	Name    string `json:"name"`
}

// Attachment is a sandbox's link to one network.
type Attachment struct {
	Network   Network      `json:"network"`
	Address   netip.Addr   `json:"address"`             // zero: the network has no IPv4
	Address6  netip.Addr   `json:"address6"`            // zero: no IPv6
	Further   []netip.Addr `json:"further,omitempty"`   // link-local addresses
	MAC       string       `json:"mac,omitempty"`       // empty: derived from the address
	Interface string       `json:"interface,omitempty"` // empty: eth0, eth1, ...
	Aliases   []string     `json:"aliases,omitempty"`   // names that others on the network know it by, beside its service's
	Sysctls   []string     `json:"sysctls,omitempty"`   // key=value, of the link: net.ipv4.conf.IFNAME.log_martians=1
}

// Paths are the files of a sandbox, for the container that joins it.
type Paths struct {
	NetNS      string // namespace to join; empty: the host's
	Hosts      string // to be mounted at /etc/hosts
	ResolvConf string // to be mounted at /etc/resolv.conf
	Hostname   string // to be mounted at /etc/hostname
}

// Paths says where the files of the sandbox are, whether or not they exist.
func (n *Networks) Paths(s Sandbox) Paths {
	dir := filepath.Join(n.hostsDir(), s.file())
	paths := Paths{
		Hosts:      filepath.Join(dir, hostsName),
		ResolvConf: filepath.Join(dir, resolvConfName),
		Hostname:   filepath.Join(dir, hostnameName),
	}
	if !s.Host {
		paths.NetNS = n.pin(s)
	}
	return paths
}

func (n *Networks) pin(s Sandbox) string { return filepath.Join(n.netnsDir(), s.file()) }

// ensureSandbox makes the sandbox and everything in it, or repairs it. Its
// networks have to be there. Links that it has and that are no longer wanted go,
// new ones come, while its containers run.
func (n *Networks) ensureSandbox(at *survey, s Sandbox) error {
	var err error
	for _, a := range s.Attached {
		err = errors.Join(err, a.check())
	}
	if err != nil {
		return err
	}
	netns, files := n.pin(s), n.filesOf(s.file())
	if err := files.ensure(at, n.owner); err != nil {
		return err
	}
	if !s.Host {
		if err := ensurePin(at, netns); err != nil {
			return err
		}
		if err := n.owner.ensureLinks(at, s, netns); err != nil {
			return err
		}
	}
	if at.looking {
		return nil
	}
	if err := n.setFiles(s, n.resolver()); err != nil {
		return err
	}
	n.dns.ensure(s, netns, files)
	files.sandbox = &s
	return nil
}

// String names the replica for messages.
func (s Sandbox) String() string {
	return fmt.Sprintf("replica %d of service %q of project %q", s.Number, s.Service, s.Project)
}

// removePin also takes the links that have no other end: a process that is
// still in the namespace would keep them.
func (n *Networks) removePin(name string) error {
	n.dns.remove(name)
	path := filepath.Join(n.netnsDir(), name)
	if pinned, err := isPin(path); err == nil && pinned {
		err := insideLinks(path, func(c *netlink.Handle) error { return removeInner(c, nil) })
		if err != nil {
			n.logger.Warn("the links of a sandbox remain until its processes end", "sandbox", name, "error", err)
		}
	}
	return removePin(path)
}
