package compose

import (
	"cmp"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

// attach resolves a service's networks: those named, else the default, unless it has none of its own.
func (r *resolver) attach(s *Service, c types.ServiceConfig) {
	if s.Network.Mode != ModePrivate {
		return
	}
	configs := map[string]*types.ServiceNetworkConfig{}
	for key, config := range c.Networks {
		if name, predefined := r.predefined(key); predefined && name == "bridge" {
			key = defaultNetwork // which is also what network_mode bridge means
		}
		configs[key] = config
	}
	if len(configs) == 0 {
		configs[defaultNetwork] = nil
	}
	for key, config := range configs {
		network := r.networks[key]
		if network == nil {
			r.refuse("networks", "names %q, which is not defined under the top-level networks", key)
			continue
		}
		r.project.Networks[key] = network
		s.Attached = append(s.Attached, r.attachment(key, network, cmp.Or(config, &types.ServiceNetworkConfig{})))
	}
	// Docker takes the default route from a network that has a way out.
	sortBy(s.Attached, func(a, b Attachment) int {
		return cmp.Or(r.inside(a)-r.inside(b), cmp.Compare(b.Gateway, a.Gateway), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Network, b.Network))
	})
	if c.MacAddress != "" && len(s.Attached) > 0 {
		first := &s.Attached[0]
		mac := r.mac("mac_address", c.MacAddress)
		if first.MAC != "" && first.MAC != mac {
			r.refuse("mac_address", "differs from that of network %q", first.Network)
		}
		first.MAC = mac
	}
	for _, a := range s.Attached {
		if other, taken := r.claim(a.Network, "interface %s of %s", a.Interface, r.service); taken && a.Interface != "" {
			r.refuse("networks."+a.Network+".interface_name", "%q is also used on network %q", a.Interface, other)
		}
		for _, address := range []netip.Addr{a.IPv4, a.IPv6} {
			if other, taken := r.claim(r.service, "%s on %s", address, r.networks[a.Network].Name); taken && address.IsValid() {
				r.refuse("networks."+a.Network, "has address %s, like service %q", address, other)
			}
		}
		if s.Replicas > 1 && (a.MAC != "" || a.IPv4.IsValid() || a.IPv6.IsValid() || len(a.LinkLocal) > 0) {
			r.refuse("networks."+a.Network, "has an address of one container, and the service has %d replicas", s.Replicas)
		}
	}
}

// inside is 1 if a network has no way out, else 0.
func (r *resolver) inside(a Attachment) int {
	if r.networks[a.Network].Internal {
		return 1
	}
	return 0
}

func (r *resolver) attachment(key string, network *Network, c *types.ServiceNetworkConfig) Attachment {
	below := "networks." + key
	a := Attachment{Network: key, Priority: c.Priority, Gateway: c.GatewayPriority, Interface: c.InterfaceName}
	for _, alias := range c.Aliases {
		a.Aliases = append(a.Aliases, r.hostName(below+".aliases", alias))
	}
	slices.Sort(a.Aliases)
	a.Aliases = slices.Compact(a.Aliases)
	if c.UseServiceNameAlias != nil && !*c.UseServiceNameAlias {
		r.refuse(below+".use_service_name_alias", "false is not supported: a service is always known by its name")
	}
	a.IPv4 = r.static(below+".ipv4_address", c.Ipv4Address, network, true)
	a.IPv6 = r.static(below+".ipv6_address", c.Ipv6Address, network, false)
	for _, written := range c.LinkLocalIPs {
		address, err := netip.ParseAddr(written)
		if err != nil || address.Zone() != "" || !address.IsLinkLocalUnicast() {
			r.refuse(below+".link_local_ips", "has %.80q, which is not a link-local address", written)
			continue
		}
		a.LinkLocal = append(a.LinkLocal, address)
	}
	if c.MacAddress != "" {
		a.MAC = r.mac(below+".mac_address", c.MacAddress)
	}
	for option, value := range c.DriverOpts {
		switch option {
		case "com.docker.network.endpoint.ifname":
			if a.Interface != "" && a.Interface != value {
				r.refuse(below+".driver_opts."+option, "differs from interface_name")
			}
			a.Interface = value
		case "com.docker.network.endpoint.sysctls":
			a.Sysctls = r.linkSysctls(below+".driver_opts."+option, value)
		default:
			r.refuse(below+".driver_opts."+option, "is not supported")
		}
	}
	if a.Interface != "" && !isLinkName(a.Interface) {
		r.refuse(below+".interface_name", "%.80q is not the name of a network interface, of at most 15 bytes", a.Interface)
	}
	return a
}

func (r *resolver) static(key, written string, network *Network, v4 bool) netip.Addr {
	if written == "" {
		return netip.Addr{}
	}
	address, err := netip.ParseAddr(written)
	if err != nil || address.Zone() != "" || address.Is4() != v4 || address.Is4In6() {
		r.refuse(key, "%.80q is not an address of its family", written)
		return netip.Addr{}
	}
	if network.External {
		return address // the project that defines the network checks its pools
	}
	for _, pool := range network.Pools {
		if !pool.Subnet.IsValid() || pool.is4() != v4 {
			continue
		}
		if _, err := pool.address("address", written); err != nil {
			r.refuse(key, "%s", err)
		} else if address == pool.Gateway {
			r.refuse(key, "%s is the gateway of the network", address)
		}
		return address
	}
	r.refuse(key, "%s needs a subnet of its family in ipam of network %q", address, network.Name)
	return address
}

func (r *resolver) mac(key, written string) string {
	mac, err := net.ParseMAC(written)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00" {
		r.refuse(key, "%.80q is not a MAC address", written)
		return ""
	}
	return mac.String()
}

var linkSysctl = regexp.MustCompile(`^net\.(ipv4|ipv6|mpls)\.(conf|neigh)\.IFNAME\.[a-z0-9_]+=[!-~]{1,64}$`)

// linkSysctls parses net.ipv4.conf.IFNAME.log_martians=1,...
func (r *resolver) linkSysctls(key, written string) []string {
	sysctls := strings.Split(written, ",")
	for _, setting := range sysctls {
		if !linkSysctl.MatchString(setting) {
			r.refuse(key, "has %.80q; use net.ipv4.conf.IFNAME.name=value", setting)
		}
	}
	slices.Sort(sysctls)
	return sysctls
}
