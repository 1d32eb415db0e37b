package compose

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/docker/go-connections/nat"

	"github.com/margolite/margolite/runtime/port"
)

// ports resolves the published ports. A service without a network of its own has none.
func (r *resolver) ports(s *Service, c types.ServiceConfig) {
	if s.Network.Mode != ModePrivate {
		return
	}
	binding := r.hostBinding(s)
	var ports []Port
	for _, c := range c.Ports {
		p := Port{HostIP: binding, Protocol: strings.ToLower(cmp.Or(c.Protocol, "tcp"))}
		if !slices.Contains([]string{"tcp", "udp", "sctp"}, p.Protocol) {
			r.refuse("ports", "has protocol %q, only tcp, udp and sctp are supported", c.Protocol)
		}
		if c.Target < 1 || c.Target > math.MaxUint16 {
			r.refuse("ports", "has target %d, which is not a port", c.Target)
			continue
		}
		p.ContainerPort = uint16(c.Target)
		if on, is := r.moved[portKey(c)]; is {
			c.Published = on
			r.in.read[portKey(c)] = true
		}
		var ok bool
		if p.HostPort, p.LastPort, ok = portRange(c.Published); !ok || p.HostPort == 0 && p.LastPort != 0 {
			r.refuse("ports", "publishes %d as %.80q, which is not a port or a range of ports", c.Target, c.Published)
			continue
		}
		if c.HostIP != "" {
			var err error
			if p.HostIP, err = netip.ParseAddr(c.HostIP); err != nil || p.HostIP.Zone() != "" {
				r.refuse("ports", "has host_ip %q, which is not an address", c.HostIP)
			}
		}
		r.checkFamily(s, p)
		if p.HostPort != 0 && p.size() < s.Replicas {
			r.refuse("ports", "publishes %d as %s, too few ports for %d replicas; use a range, or omit the host port", c.Target, c.Published, s.Replicas)
		}
		ports = append(ports, p)
	}
	sortBy(ports, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.HostPort, b.HostPort), cmp.Compare(a.LastPort, b.LastPort), cmp.Compare(a.Protocol, b.Protocol),
			a.HostIP.Compare(b.HostIP), cmp.Compare(a.ContainerPort, b.ContainerPort))
	})
	s.Ports = slices.Compact(ports)
}

func portKey(c types.ServicePortConfig) string {
	return fmt.Sprintf("%d/%s", c.Target, strings.ToLower(cmp.Or(c.Protocol, "tcp")))
}

// movable are the wanted ports that the project publishes exactly once, which are unambiguous.
func (l *loading) movable(p *types.Project, wanted map[string]string) map[string]string {
	published := map[string]int{}
	for _, s := range p.Services {
		for _, c := range s.Ports {
			published[portKey(c)]++
		}
	}
	movable := map[string]string{}
	for key, on := range wanted {
		if published[key] == 1 {
			movable[key] = on
			continue
		}
		l.warnings.add("", "container port "+key, "is published %d times, not once: it is not put on port %s of the device", published[key], on)
	}
	return movable
}

// checkFamily refuses host addresses that cannot lead to the network.
func (r *resolver) checkFamily(s *Service, p Port) {
	network, v4, v6 := s.publishedBy(r.networks)
	switch {
	case p.HostIP.Is6() && !v6:
		r.refuse("ports", "publishes %d on %s, but network %q has no IPv6: set its enable_ipv6: true", p.ContainerPort, p.HostIP, network)
	case p.HostIP.Is4() && !v4:
		r.refuse("ports", "publishes %d on %s, but network %q has no IPv4: remove its enable_ipv4: false", p.ContainerPort, p.HostIP, network)
	case p.HostIP == netip.IPv6Loopback():
		r.note("ports", "publishes %d on ::1, where nothing reaches it: use 127.0.0.1", p.ContainerPort)
	}
}

// publishedBy is the network of published ports, the first reachable from outside, and its families.
func (s *Service) publishedBy(networks map[string]*Network) (key string, v4, v6 bool) {
	for _, a := range s.Attached {
		if n := networks[a.Network]; n != nil && !n.Internal && (n.External || n.Driver == "bridge") {
			return a.Network, !n.NoIPv4, n.IPv6 || n.External
		}
	}
	return "", true, true // nothing is published
}

// PortAddresses returns the host addresses on which a port of s is published.
func (p *Project) PortAddresses(s *Service, port Port) (on []netip.Addr) {
	if port.HostIP.IsValid() {
		return []netip.Addr{port.HostIP}
	}
	_, v4, v6 := s.publishedBy(p.Networks)
	if v4 {
		on = append(on, netip.IPv4Unspecified())
	}
	if v6 {
		on = append(on, netip.IPv6Unspecified())
	}
	return on
}

// Notes warns that ports without a host_ip are not published on all addresses of the device.
func (p *Project) Notes() (notes []string) {
	for _, s := range p.Services {
		network, _, v6 := s.publishedBy(p.Networks)
		if !v6 && slices.ContainsFunc(s.Ports, func(port Port) bool { return !port.HostIP.IsValid() }) {
			notes = append(notes, fmt.Sprintf("network %q has no enable_ipv6: true: its ports are published on IPv4 addresses only", network))
		}
	}
	slices.Sort(notes)
	return slices.Compact(notes)
}

func (r *resolver) hostBinding(s *Service) netip.Addr {
	for _, a := range s.Attached {
		if written := r.networks[a.Network].Options[OptionHostBinding]; written != "" {
			address, _ := netip.ParseAddr(written) // checked with the network
			return address
		}
	}
	return netip.Addr{}
}

// portRange parses 8080, which has no last, 8080-8090, and "": any host port.
func portRange(written string) (first, last uint16, ok bool) {
	from, to, err := nat.ParsePortRangeToInt(written)
	if to == from {
		to = 0
	}
	return uint16(from), uint16(to), err == nil
}

func (p Port) size() int {
	if p.LastPort == 0 {
		return 1
	}
	return int(p.LastPort-p.HostPort) + 1
}

// checkPorts finds host ports published twice. Ranges need only one free port at the start.
func (l *loading) checkPorts(p *Project) {
	type use struct {
		Port
		service string
	}
	var taken []use
	for _, name := range p.names() {
		for _, published := range p.Services[name].Ports {
			if published.HostPort == 0 || published.LastPort != 0 || p.Services[name].Replicas == 0 {
				continue
			}
			for _, other := range taken {
				if other.HostPort == published.HostPort && other.Protocol == published.Protocol && port.Overlap(published.HostIP, other.HostIP) {
					l.findings.add(name, "ports", "publishes port %d/%s of the device, like service %q", published.HostPort, published.Protocol, other.service)
				}
			}
			taken = append(taken, use{published, name})
		}
	}
}
