package compose

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

// hostGateway is the word for the device itself in extra_hosts.
const hostGateway = "host-gateway"

const (
	// MaxHostname is the kernel's limit in bytes for a host name, and for a domain name.
	MaxHostname = 64
	maxHosts    = 256 // lines of extra_hosts
	maxServers  = 3   // the limit of libc, and so of the network
)

// hostName accepts any word, without the final dot with which it would never match.
func (r *resolver) hostName(key, written string) string {
	name := strings.TrimSuffix(written, ".")
	if !isWord(name) {
		r.refuse(key, "has %.80q, which is not a name of 1 to 255 printable ASCII characters without spaces and #", written)
	}
	return name
}

func (r *resolver) names(s *Service, c types.ServiceConfig) {
	s.ExtraHosts = r.extraHosts(c.ExtraHosts)
	s.Links = r.links(c.Links)
	for _, written := range c.DNS {
		server, err := netip.ParseAddr(written)
		if err != nil || server.Zone() != "" {
			r.refuse("dns", "has %.80q, which is not an address", written)
			continue
		}
		s.DNS = append(s.DNS, server)
	}
	if len(s.DNS) > maxServers {
		r.note("dns", "has %d servers: only the first %d are asked", len(s.DNS), maxServers)
	}
	for _, domain := range c.DNSSearch {
		if domain != "." { // which says that there are none
			domain = r.hostName("dns_search", domain)
		}
		s.DNSSearch = append(s.DNSSearch, domain)
	}
	s.DNSOptions = c.DNSOpts
}

func (r *resolver) extraHosts(written types.HostsList) []ExtraHost {
	var hosts []ExtraHost
	for name, addresses := range written {
		name = r.hostName("extra_hosts", name)
		for _, address := range addresses {
			host := ExtraHost{Name: name}
			if address = strings.TrimSpace(address); address != hostGateway {
				var err error
				if host.Address, err = netip.ParseAddr(address); err != nil || host.Address.Zone() != "" {
					r.refuse("extra_hosts", "has %.80q for %s; use an address or %s", address, name, hostGateway)
				}
			}
			hosts = append(hosts, host)
		}
	}
	if len(hosts) > maxHosts {
		r.refuse("extra_hosts", "has %d entries; the limit is %d", len(hosts), maxHosts)
	}
	sortBy(hosts, func(a, b ExtraHost) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), a.Address.Compare(b.Address))
	})
	return slices.Compact(hosts)
}

// links are aliases of other services; a link without one is only a dependency.
func (r *resolver) links(written []string) []ServiceName {
	var links []ServiceName
	for _, link := range written {
		service, name, named := strings.Cut(link, ":")
		if !named || name == service {
			continue
		}
		links = append(links, ServiceName{Service: service, Name: r.hostName("links", name)})
	}
	sortBy(links, func(a, b ServiceName) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Name, b.Name))
	})
	return slices.Compact(links)
}
