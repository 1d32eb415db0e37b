package compose

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/margolite/margolite/runtime/port"
)

// ports resolves what a service publishes. Without a network of its own it
// publishes nothing.
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
		if c.Mode != "" && c.Mode != "host" && c.Mode != "ingress" {
			r.refuse("ports.mode", "%.80q is not one of host and ingress", c.Mode)
		}
		if c.Target < 1 || c.Target > math.MaxUint16 {
			r.refuse("ports", "has target %d, which is not a port", c.Target)
			continue
		}
		p.ContainerPort = uint16(c.Target)
		var ok bool
		if p.HostPort, p.LastPort, ok = publishedRange(c.Published); !ok {
			r.refuse("ports", "publishes %d as %.80q, which is not a port or a range of ports", c.Target, c.Published)
			continue
		}
		if c.HostIP != "" {
			var err error
			if p.HostIP, err = netip.ParseAddr(c.HostIP); err != nil || p.HostIP.Zone() != "" {
				r.refuse("ports", "has host_ip %q, which is not an address", c.HostIP)
			}
		}
		if p.HostPort != 0 && p.size() < s.Replicas {
			r.refuse("ports", "publishes %d as %s, too few ports for %d replicas; use a range, or omit the host port", c.Target, c.Published, s.Replicas)
		}
		ports = append(ports, p)
	}
	slices.SortFunc(ports, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.HostPort, b.HostPort), cmp.Compare(a.LastPort, b.LastPort), cmp.Compare(a.Protocol, b.Protocol),
			a.HostIP.Compare(b.HostIP), cmp.Compare(a.ContainerPort, b.ContainerPort))
	})
	s.Ports = slices.Compact(ports)
}

// hostBinding is the address that a network publishes ports on, where it says one.
func (r *resolver) hostBinding(s *Service) netip.Addr {
	for _, a := range s.Attached {
		if written := r.networks[a.Network].Options[OptionHostBinding]; written != "" {
			address, _ := netip.ParseAddr(written) // checked with the network
			return address
		}
	}
	return netip.Addr{}
}

// publishedRange reads 8080, 8080-8090, and nothing: any port of the device.
func publishedRange(written string) (first, last uint16, ok bool) {
	if written == "" {
		return 0, 0, true
	}
	from, to, isRange := strings.Cut(written, "-")
	a, err := strconv.ParseUint(from, 10, 16)
	if err != nil {
		return 0, 0, false
	}
	if !isRange {
		return uint16(a), 0, true
	}
	b, err := strconv.ParseUint(to, 10, 16)
	if err != nil || a == 0 || b < a {
		return 0, 0, false
	}
	if a == b {
		return uint16(a), 0, true
	}
	return uint16(a), uint16(b), true
}

// size is how many ports of the device one may be published on.
func (p Port) size() int {
	if p.LastPort == 0 {
		return 1
	}
	return int(p.LastPort-p.HostPort) + 1
}

// checkPorts finds ports of the device that are published twice. Of ranges the
// first port that is free is taken when the service starts.
func (l *loading) checkPorts(p *Project) {
	type use struct {
		Port
		service string
	}
	taken := map[string][]use{}
	for _, name := range p.names() {
		for _, published := range p.Services[name].Ports {
			if published.HostPort == 0 || published.LastPort != 0 || p.Services[name].Replicas == 0 {
				continue
			}
			key := fmt.Sprintf("%d/%s", published.HostPort, published.Protocol)
			for _, other := range taken[key] {
				if port.Overlap(published.HostIP, other.HostIP) {
					l.findings.add(name, "ports", "publishes port %s of the device, like service %q", key, other.service)
				}
			}
			taken[key] = append(taken[key], use{published, name})
		}
	}
}
