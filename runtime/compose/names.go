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

// names resolves how the containers of a service resolve names.
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
	words := func(key string, written []string) []string {
		for _, word := range written {
			if !isWord(word) {
				r.refuse(key, "has a malformed entry %.80q", word)
			}
		}
		return written
	}
	if r.few("dns", len(c.DNS)) && r.few("dns_search", len(c.DNSSearch)) && r.few("dns_opt", len(c.DNSOpts)) {
		s.DNSSearch = words("dns_search", c.DNSSearch)
		s.DNSOptions = words("dns_opt", c.DNSOpts)
	}
}

func (r *resolver) extraHosts(written types.HostsList) []ExtraHost {
	var hosts []ExtraHost
	for name, addresses := range written {
		if !isWord(name) {
			r.refuse("extra_hosts", "has %.80q, which is not a name", name)
		}
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
	if !r.few("extra_hosts", len(hosts)) {
		return nil
	}
	slices.SortFunc(hosts, func(a, b ExtraHost) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), a.Address.Compare(b.Address))
	})
	return slices.Compact(hosts)
}

// links are further names of services; a link without one is a dependency alone.
func (r *resolver) links(written []string) []ServiceName {
	if !r.few("links", len(written)) {
		return nil
	}
	var links []ServiceName
	for _, link := range written {
		service, name, named := strings.Cut(link, ":")
		if !named || name == service {
			continue
		}
		if !isWord(name) {
			r.refuse("links", "has %.80q, which is not a name", name)
		}
		links = append(links, ServiceName{Service: service, Name: name})
	}
	slices.SortFunc(links, func(a, b ServiceName) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Name, b.Name))
	})
	return slices.Compact(links)
}
