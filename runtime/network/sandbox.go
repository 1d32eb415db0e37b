package network

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/vishvananda/netlink"
)

// Sandbox is a replica's place on the network, as plain data kept with its container.
type Sandbox struct {
	Project string `json:"project"`
	Service string `json:"service"`
	Number  int    `json:"number"`
	// Host says that the replica uses the host's network: there is no namespace, only files.
	Host       bool         `json:"host,omitempty"`
	Attached   []Attachment `json:"attached,omitempty"` // the first has the default route; none: loopback only
	Hostname   string       `json:"hostname,omitempty"`
	Domainname string       `json:"domainname,omitempty"`
	Names      []string     `json:"names,omitempty"` // further names of the replica for itself
	Extra      []Host       `json:"extra,omitempty"` // further lines of the hosts file
	Links      []Link       `json:"links,omitempty"` // names for other services that only this replica knows
	DNS        []netip.Addr `json:"dns,omitempty"`   // instead of the host's nameservers
	DNSSearch  []string     `json:"dnsSearch,omitempty"`
	DNSOptions []string     `json:"dnsOptions,omitempty"`
}

// Link is another name for a service of the same project.
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
	Aliases   []string     `json:"aliases,omitempty"`   // further names on the network, beside the service's
	Sysctls   []string     `json:"sysctls,omitempty"`   // key=value, of the link: net.ipv4.conf.IFNAME.log_martians=1
}

// Paths are the files of a sandbox that a container joins or mounts.
type Paths struct {
	NetNS      string // namespace to join; empty: the host's
	Hosts      string // mounted at /etc/hosts
	ResolvConf string // mounted at /etc/resolv.conf
	Hostname   string // mounted at /etc/hostname
}

// Paths returns the paths of the sandbox's files, whether or not they exist.
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

// ensureSandbox makes or repairs a sandbox on existing networks, also of running containers.
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

// removePin also removes links without another end, which a remaining process would keep.
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
