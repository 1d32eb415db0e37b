package compose

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"

	"github.com/compose-spec/compose-go/v2/types"
)

const defaultNetwork = "default"

// The supported options, by Docker's names. The first two are normalised to "true" or "false".
const (
	OptionICC         = "com.docker.network.bridge.enable_icc"
	OptionMasquerade  = "com.docker.network.bridge.enable_ip_masquerade"
	OptionHostBinding = "com.docker.network.bridge.host_binding_ipv4"
	OptionMTU         = "com.docker.network.driver.mtu"
	OptionParent      = "parent"
	OptionMacvlanMode = "macvlan_mode"
	OptionIpvlanMode  = "ipvlan_mode"
)

var networkOptions = map[string][]string{
	"bridge":  {OptionICC, OptionMasquerade, OptionMTU, OptionHostBinding},
	"macvlan": {OptionParent, OptionMTU, OptionMacvlanMode},
	"ipvlan":  {OptionParent, OptionMTU, OptionIpvlanMode},
}

var linkName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$`)

// isLinkName excludes the loopback, and words that stand for all links.
func isLinkName(s string) bool {
	return linkName.MatchString(s) && s != "lo" && s != "all" && s != "default"
}

// predefined is the Docker network that the file means with key: host, none or bridge.
func (r *resolver) predefined(key string) (string, bool) {
	c, defined := r.project.Compose.Networks[key]
	name := cmp.Or(c.Name, key)
	return name, defined && bool(c.External) && slices.Contains([]string{"host", "none", "bridge"}, name)
}

// networksByKey resolves the top-level networks. The project gets those that services use.
func (r *resolver) networksByKey() map[string]*Network {
	project := r.project.Compose
	networks := map[string]*Network{
		defaultNetwork: {Name: r.project.Name + "_" + defaultNetwork, Driver: "bridge"},
	}
	for _, key := range project.NetworkNames() {
		if _, predefined := r.predefined(key); predefined {
			continue
		}
		n := r.network(key, project.Networks[key])
		if other, taken := r.claim(key, "network %s", n.Name); taken {
			r.refuse("networks."+key, "has the same name as network %q", other)
		}
		networks[key] = n
	}
	return networks
}

func (r *resolver) network(key string, c types.NetworkConfig) *Network {
	at := "networks." + key
	name := c.Name
	if name == "" {
		if name = key; !bool(c.External) {
			name = r.project.Name + "_" + key
		}
	}
	if !ValidName(key) || len(name) > 2*maxName || !ValidName(name[:min(len(name), maxName)]) {
		r.refuse(at, "has an invalid name: use letters, digits, _, . and -")
	}
	n := &Network{Name: name, External: bool(c.External)}
	if n.External {
		return n
	}
	n.Driver = cmp.Or(c.Driver, "bridge")
	n.Internal = c.Internal
	n.IPv6 = c.EnableIPv6 != nil && *c.EnableIPv6
	n.NoIPv4 = c.EnableIPv4 != nil && !*c.EnableIPv4
	for option, value := range c.DriverOpts {
		if !slices.Contains(networkOptions[n.Driver], option) {
			r.refuse(at+".driver_opts."+option, "is not supported by driver %s", n.Driver)
			continue
		}
		valid := true
		switch option {
		case OptionICC, OptionMasquerade:
			yes, err := strconv.ParseBool(value)
			value, valid = strconv.FormatBool(yes), err == nil
		case OptionHostBinding:
			address, err := netip.ParseAddr(value)
			valid = err == nil && address.Is4()
		case OptionParent:
			valid = isLinkName(value)
		case OptionMTU:
			mtu, err := strconv.ParseUint(value, 10, 16)
			valid = err == nil && mtu >= 68
		}
		if !valid {
			r.refuse(at+".driver_opts."+option, "cannot be %.80q", c.DriverOpts[option])
		}
		if n.Options == nil {
			n.Options = map[string]string{}
		}
		n.Options[option] = value
	}
	if n.NoIPv4 && !n.IPv6 {
		r.refuse(at+".enable_ipv4", "is false without enable_ipv6: the network would have no addresses")
	}
	r.pools(n, at+".ipam.config", c.Ipam.Config)
	return n
}

// pools resolves ipam: as with Docker's drivers, a network has one pool per family.
func (r *resolver) pools(n *Network, key string, configs []*types.IPAMPool) {
	families := map[bool]bool{}
	for _, c := range configs {
		if c == nil {
			continue
		}
		pool, err := poolOf(c)
		if err != nil {
			r.refuse(key, "%s", err)
			continue
		}
		v4 := pool.is4()
		switch {
		case !v4 && !n.IPv6:
			r.note(key, "is ignored: pool %s is IPv6, and enable_ipv6 is not true", pool.Subnet)
			continue
		case v4 && n.NoIPv4:
			r.note(key, "is ignored: pool %s is IPv4, and enable_ipv4 is false", pool.Subnet)
			continue
		case families[v4]:
			r.refuse(key, "has several pools of one family; use one for IPv4 and one for IPv6")
			continue
		}
		families[v4] = true
		n.Pools = append(n.Pools, pool)
	}
	sortBy(n.Pools, func(a, b Pool) int { return a.Subnet.Addr().Compare(b.Subnet.Addr()) })
}

// is4 tells whether a pool is IPv4, as an empty one is.
func (p Pool) is4() bool {
	return !p.Subnet.IsValid() || p.Subnet.Addr().Is4()
}

func poolOf(c *types.IPAMPool) (Pool, error) {
	var p Pool
	if c.Subnet == "" {
		if c.IPRange != "" || c.Gateway != "" || len(c.AuxiliaryAddresses) > 0 {
			return p, fmt.Errorf("needs a subnet for its gateway, ip_range or aux_addresses")
		}
		return p, nil
	}
	var err error
	if p.Subnet, err = prefix("subnet", c.Subnet); err != nil {
		return p, err
	}
	if left := p.Subnet.Addr().BitLen() - p.Subnet.Bits(); left < 2 || p.Subnet.Addr().IsMulticast() || p.Subnet.Addr().IsLoopback() || p.Subnet.Bits() < 8 {
		return p, fmt.Errorf("has subnet %s, which is not for containers", c.Subnet)
	}
	if c.IPRange != "" {
		if p.Range, err = prefix("ip_range", c.IPRange); err != nil {
			return p, err
		}
		if !p.Subnet.Contains(p.Range.Addr()) || p.Range.Bits() < p.Subnet.Bits() {
			return p, fmt.Errorf("has ip_range %s, which is not within %s", c.IPRange, p.Subnet)
		}
	}
	if c.Gateway != "" {
		if p.Gateway, err = p.address("gateway", c.Gateway); err != nil {
			return p, err
		}
	}
	for name, written := range c.AuxiliaryAddresses {
		address, err := p.address("aux_addresses."+name, written)
		if err != nil {
			return p, err
		}
		if p.Taken == nil {
			p.Taken = map[string]netip.Addr{}
		}
		p.Taken[name] = address
	}
	return p, nil
}

func prefix(key, written string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(written)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("has %s %.80q, which is not a network such as 10.1.0.0/16", key, written)
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("has %s %s; use %s", key, p, p.Masked())
	}
	return p, nil
}

// address parses a host address within the subnet.
func (p Pool) address(key, written string) (netip.Addr, error) {
	a, err := netip.ParseAddr(written)
	switch {
	case err != nil || a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("has %s %.80q, which is not an address", key, written)
	case !p.Subnet.Contains(a):
		return netip.Addr{}, fmt.Errorf("has %s %s, which is not within %s", key, a, p.Subnet)
	case a == p.Subnet.Addr(), a.Is4() && !p.Subnet.Contains(a.Next()): // the network, and its broadcast address
		return netip.Addr{}, fmt.Errorf("has %s %s, which is not a host address in %s", key, a, p.Subnet)
	}
	return a, nil
}

func (l *loading) checkPools(p *Project) {
	used := map[netip.Prefix]string{}
	for _, key := range slices.Sorted(maps.Keys(p.Networks)) {
		for _, pool := range p.Networks[key].Pools {
			for subnet, other := range used {
				if subnet.Overlaps(pool.Subnet) {
					l.findings.add("", "networks."+key+".ipam.config", "has subnet %s, which overlaps %s of network %q", pool.Subnet, subnet, other)
				}
			}
			used[pool.Subnet] = key
		}
	}
}
