package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/network"
)

const shortID = 12

// locating is the search for the place of one project. Containers keep theirs where possible.
type locating struct {
	pl     *places
	p      *compose.Project
	name   string
	wanted []planned
	joins  func(network, of string) error // may be nil
	all    []container.Container
	others placement // of the other projects
	own    placement // of all containers that the project has
	former placement // of those among them that stand for their replicas
	place  placement
	known  map[string]network.Network       // by key
	taken  map[string]map[netip.Addr]string // by name of the network; by whom
}

// locateLocked needs mu.
func (pl *places) locateLocked(ctx context.Context, all []container.Container, p *Project, replicas []planned) (placement, error) {
	l := &locating{
		pl: pl, p: p.Compose, name: p.Name, wanted: replicas, joins: p.Joins, all: all,
		known: make(map[string]network.Network),
		taken: make(map[string]map[netip.Addr]string),
	}
	for _, s := range pl.everybodyLocked(all) {
		if s.project != p.Name {
			l.others = append(l.others, s)
		}
	}
	own := slices.DeleteFunc(slices.Clone(all), func(c container.Container) bool { return c.Labels.Project != p.Name })
	l.own, l.former = recorded(own), recorded(current(own))
	for _, step := range []func(context.Context) error{l.networks, l.reserveAddresses, l.seats, l.named, l.joined, l.publish} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return l.place, nil
}

func (l *locating) networks(context.Context) error {
	for _, r := range l.wanted {
		for _, a := range r.service.Attached {
			if _, ok := l.known[a.Network]; ok {
				continue
			}
			w, err := l.network(l.p.Networks[a.Network])
			if err != nil {
				return err
			}
			l.known[a.Network] = w
		}
	}
	return nil
}

func (l *locating) network(n *compose.Network) (network.Network, error) {
	w := wantedNetwork(n)
	var used []netip.Prefix
	for _, box := range slices.Concat(l.others, l.own).sandboxes() {
		for _, a := range box.Attached {
			own := box.Project == l.name
			switch {
			case a.Network.Name != n.Name:
				used = append(used, a.Network.Subnet, a.Network.Subnet6)
				continue
			case own && (n.External || !matches(a.Network, w, n)):
				continue
			case !n.External && !matches(a.Network, w, n):
				return w, conflict(l.name, "network %s belongs to project %s, which defines it differently", n.Name, box.Project)
			case !n.External && !own && l.joins != nil:
				if err := l.joins(n.Name, box.Project); err != nil {
					return w, fail(Conflict, l.name, err)
				}
			}
			return a.Network, nil
		}
	}
	if n.External {
		return w, &Error{Code: NotFound, Object: l.name, Err: fmt.Errorf("network %s is external, but no running project has it", n.Name)}
	}
	for _, own := range l.known {
		used = append(used, own.Subnet, own.Subnet6)
	}
	chosen, err := l.pl.networks.Choose(w, n.IPv6, used)
	if err != nil {
		return w, fail(Internal, l.name, err)
	}
	return chosen, nil
}

// wantedNetwork is a network as far as the project specifies it; the rest is chosen.
func wantedNetwork(n *compose.Network) network.Network {
	w := network.Network{
		Name:     n.Name,
		NoIPv4:   n.NoIPv4,
		Internal: n.Internal,
		Unmasked: n.Options[compose.OptionMasquerade] == "false",
		Apart:    n.Options[compose.OptionICC] == "false",
	}
	if n.Driver == "macvlan" || n.Driver == "ipvlan" {
		w.Driver = n.Driver
		w.Parent = n.Options["parent"]
		w.Mode = n.Options[n.Driver+"_mode"]
	}
	_, _ = fmt.Sscan(n.Options[compose.OptionMTU], &w.MTU) // the room compose has checked it
	for _, pool := range n.Pools {
		switch {
		case pool.Subnet.Addr().Is4() && !w.Subnet.IsValid():
			w.Subnet, w.Gateway = pool.Subnet.Masked(), pool.Gateway
		case pool.Subnet.Addr().Is6() && !w.Subnet6.IsValid():
			w.Subnet6, w.Gateway6 = pool.Subnet.Masked(), pool.Gateway
		}
	}
	return w
}

func matches(is, want network.Network, n *compose.Network) bool {
	if is.Subnet.IsValid() == n.NoIPv4 || is.Subnet6.IsValid() != (n.IPv6 || want.Subnet6.IsValid()) {
		return false
	}
	want.Bridge, want.NoIPv4 = is.Bridge, is.NoIPv4
	want.Subnet, want.Gateway = cmp.Or(want.Subnet, is.Subnet), cmp.Or(want.Gateway, is.Gateway)
	want.Subnet6, want.Gateway6 = cmp.Or(want.Subnet6, is.Subnet6), cmp.Or(want.Gateway6, is.Gateway6)
	return is == want
}

// reserveAddresses notes addresses of other projects, fixed ones, and those replicas already have.
func (l *locating) reserveAddresses(context.Context) error {
	for _, s := range l.others {
		for _, a := range s.Sandbox.Attached {
			l.take(a.Network.Name, fmt.Sprintf("%s of project %s", s.Replica, s.project), a.Address, a.Address6)
		}
	}
	for key, w := range l.known {
		l.take(w.Name, "the gateway", w.Gateway, w.Gateway6)
		for _, pool := range l.p.Networks[key].Pools {
			for name, address := range pool.Taken {
				l.take(w.Name, "kept for "+name, address)
			}
		}
	}
	for _, r := range l.wanted {
		for _, a := range r.service.Attached {
			for _, address := range []netip.Addr{a.IPv4, a.IPv6} {
				if !address.IsValid() {
					continue
				}
				w := l.known[a.Network]
				if by, ok := l.taken[w.Name][address]; ok {
					return conflict(r.Service, "cannot give %s address %s on network %s: %s has it", r.Replica, address, w.Name, by)
				}
				l.take(w.Name, r.String(), address)
			}
		}
	}
	for _, s := range l.former {
		for _, a := range s.Sandbox.Attached {
			for _, address := range []netip.Addr{a.Address, a.Address6} {
				if _, ok := l.taken[a.Network.Name][address]; !ok {
					l.take(a.Network.Name, s.Replica.String(), address)
				}
			}
		}
	}
	return nil
}

func (l *locating) take(name, by string, addresses ...netip.Addr) {
	if l.taken[name] == nil {
		l.taken[name] = make(map[netip.Addr]string)
	}
	for _, a := range addresses {
		if a.IsValid() {
			l.taken[name][a] = by
		}
	}
}

// seats places the replicas with a sandbox of their own.
func (l *locating) seats(context.Context) error {
	for _, r := range l.wanted {
		seat := seat{member{l.name, r.Replica}, container.Seat{Name: r.service.ContainerName}}
		switch r.service.Network.Mode {
		case compose.ModeService, compose.ModeContainer:
		default:
			var err error
			if seat.Sandbox, err = l.box(r.service, r.Replica); err != nil {
				return err
			}
		}
		l.place = append(l.place, seat)
	}
	return nil
}

// named refuses names that containers of other projects have.
func (l *locating) named(context.Context) error {
	for _, other := range l.others {
		for _, s := range l.place {
			for _, chosen := range []string{s.Name, other.Name} {
				if s.isCalled(chosen) && other.isCalled(chosen) {
					return conflict(s.Service, "cannot be named %s: service %s of project %s has that name", chosen, other.Service, other.project)
				}
			}
		}
	}
	return nil
}

func (l *locating) box(s *compose.Service, r Replica) (network.Sandbox, error) {
	box := network.Sandbox{
		Project: l.name, Service: r.Service, Number: r.Number,
		Host:       s.Network.Mode == compose.ModeHost,
		Hostname:   cmp.Or(s.Hostname, hostnameOf(r)),
		Domainname: s.Domainname,
		DNS:        s.DNS,
		DNSSearch:  s.DNSSearch,
		DNSOptions: s.DNSOptions,
	}
	if box.Host {
		box.Hostname = s.Hostname
	} else if box.Hostname != r.Service {
		box.Names = append(box.Names, r.Service)
	}
	for _, a := range s.Attached {
		link, err := l.attach(a, r)
		if err != nil {
			return box, err
		}
		box.Attached = append(box.Attached, link)
		box.Names = append(box.Names, a.Aliases...)
	}
	if s.ContainerName != "" {
		box.Names = append(box.Names, s.ContainerName)
	}
	for _, link := range s.Links {
		box.Links = append(box.Links, network.Link{Service: link.Service, Name: link.Name})
	}
	box.Extra = extraHosts(s.ExtraHosts, box)
	return box, nil
}

// hostnameOf is unique and stable under scaling, since programs take it for an identity. Too
// long for the kernel, it becomes an id, as with Docker.
func hostnameOf(r Replica) string {
	name := r.Service
	if r.Number != 1 {
		name = r.String()
	}
	if len(name) > compose.MaxHostname {
		name = digest.FromString(name).Encoded()[:shortID]
	}
	return name
}

func (l *locating) attach(a compose.Attachment, r Replica) (network.Attachment, error) {
	w := l.known[a.Network]
	link := network.Attachment{
		Network: w, Address: a.IPv4, Address6: a.IPv6, Further: a.LinkLocal, MAC: a.MAC,
		Interface: a.Interface, Aliases: a.Aliases, Sysctls: a.Sysctls,
	}
	seat, _ := l.former.seat(r)
	former, _ := attachment(seat.Sandbox, w.Name)
	for _, family := range []struct {
		subnet  netip.Prefix
		former  netip.Addr
		address *netip.Addr
	}{{w.Subnet, former.Address, &link.Address}, {w.Subnet6, former.Address6, &link.Address6}} {
		switch {
		case !family.subnet.IsValid() || family.address.IsValid():
		case family.subnet.Contains(family.former) && l.taken[w.Name][family.former] == r.String():
			*family.address = family.former
		default:
			next, err := network.NextAddress(w, l.within(a.Network, family.subnet), slices.Collect(maps.Keys(l.taken[w.Name])))
			if err != nil {
				return link, err
			}
			*family.address = next
		}
		l.take(w.Name, r.String(), *family.address)
	}
	return link, nil
}

// within is the part of a subnet from which addresses are assigned.
func (l *locating) within(key string, subnet netip.Prefix) netip.Prefix {
	for _, pool := range l.p.Networks[key].Pools {
		if pool.Subnet.Masked() == subnet && pool.Range.IsValid() {
			return pool.Range.Masked()
		}
	}
	return subnet
}

// extraHosts resolves extra_hosts; host-gateway is the device's address as the service reaches it.
func extraHosts(extra []compose.ExtraHost, box network.Sandbox) []network.Host {
	var w network.Network
	if len(box.Attached) > 0 {
		w = box.Attached[0].Network
	}
	var hosts []network.Host
	for _, x := range extra {
		address := cmp.Or(x.Address, w.Gateway, w.Gateway6, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
		hosts = append(hosts, network.Host{Address: address, Names: []string{x.Name}})
	}
	return hosts
}

// joined finds whose sandbox, process identifiers and shared memory a replica shares; owners come first.
func (l *locating) joined(context.Context) error {
	for i := range l.place {
		s := &l.place[i]
		service := l.wanted[i].service
		for _, n := range []struct {
			kind specs.LinuxNamespaceType
			compose.Namespace
		}{{specs.NetworkNamespace, service.Network}, {specs.PIDNamespace, service.PID}, {specs.IPCNamespace, service.IPC}} {
			if n.Mode != compose.ModeService && n.Mode != compose.ModeContainer {
				continue
			}
			other, ok := l.other(n.Namespace, s.Number)
			switch lives := n.kind == specs.NetworkNamespace; {
			case !ok, lives && other.Sandbox.Project == "":
				return &Error{Code: NotFound, Object: s.Service, Err: fmt.Errorf("cannot share the %s namespace of %s %s: it is not running", n.kind, n.Mode, n.Of)}
			case lives:
				s.Sandbox = other.Sandbox
			default:
				s.Joins = append(s.Joins, container.Join{Kind: n.kind, Project: other.project, Service: other.Service, Number: other.Number})
			}
		}
	}
	return nil
}

// other is the replica whose namespace is shared, by number if the service has several.
func (l *locating) other(n compose.Namespace, number int) (s seat, ok bool) {
	if n.Mode == compose.ModeService {
		if s, ok = l.place.seat(Replica{n.Of, number}); !ok {
			s, ok = l.place.seat(Replica{n.Of, 1})
		}
		return s, ok
	}
	for _, s := range slices.Concat(l.place, l.others) {
		if s.isCalled(n.Of) {
			return s, true
		}
	}
	for _, c := range l.all {
		if c.Labels.Project != l.name && (c.ID == n.Of || len(n.Of) >= shortID && strings.HasPrefix(c.ID, n.Of)) {
			return seatOf(c), true
		}
	}
	return seat{}, false
}

// publish assigns ports. It refuses those in use, except by the project's own containers.
func (l *locating) publish(ctx context.Context) error {
	taken, err := l.pl.networks.ForeignPorts(ctx)
	if err != nil {
		return err
	}
	take := func(s seat, ports []network.Port) {
		for _, p := range ports {
			p.Owner = fmt.Sprintf("service %s of project %s", s.Service, s.project)
			taken = append(taken, p)
		}
	}
	for _, s := range l.others {
		take(s, s.Ports)
	}
	kept := l.own.ports()
	for _, s := range l.place {
		for _, p := range l.p.Services[s.Service].Ports {
			if s.own() && p.HostPort != 0 && p.LastPort <= p.HostPort {
				kept = append(kept, network.Port{Protocol: p.Protocol, HostIP: p.HostIP, HostPort: p.HostPort, Address: netip.IPv4Unspecified()})
			}
		}
	}
	for i := range l.place {
		s := &l.place[i]
		via, ok := published(s.Sandbox)
		if !ok || !s.own() {
			continue
		}
		for _, port := range l.p.Services[s.Service].Ports {
			ports, err := l.port(port, *s, via, slices.Concat(kept, taken))
			for _, p := range ports {
				err = errors.Join(err, l.pl.networks.CheckPort(p, taken, l.own.ports()...))
			}
			if err != nil {
				return fail(Internal, s.Service, err)
			}
			s.Ports = append(s.Ports, ports...)
			take(*s, ports)
		}
	}
	return nil
}

// published is the link that published ports lead to: the first one reachable from outside.
func published(box network.Sandbox) (network.Attachment, bool) {
	i := slices.IndexFunc(box.Attached, func(a network.Attachment) bool { return !a.Network.Internal && a.Network.Driver == "" })
	if i < 0 {
		return network.Attachment{}, false
	}
	return box.Attached[i], true
}

// port returns a published port once for each address family of the link.
func (l *locating) port(p compose.Port, s seat, via network.Attachment, taken []network.Port) ([]network.Port, error) {
	var ports []network.Port
	for _, address := range []netip.Addr{via.Address, via.Address6} {
		if address.IsValid() && (!p.HostIP.IsValid() || p.HostIP.Is4() == address.Is4()) {
			ports = append(ports, network.Port{Protocol: p.Protocol, HostIP: p.HostIP, ContainerPort: p.ContainerPort, Address: address})
		}
	}
	if len(ports) == 0 {
		return nil, &Error{Code: Unsupported, Object: s.Service, Err: fmt.Errorf("cannot publish port %d on %s: network %s has no address of that family: see its enable_ipv6 and enable_ipv4", p.ContainerPort, p.HostIP, via.Network.Name)}
	}
	last := max(p.HostPort, p.LastPort)
	number := p.HostPort
	if p.HostPort == 0 || last > p.HostPort {
		if number = l.formerPort(p, s, last); number == 0 {
			var err error
			if number, err = l.pl.networks.FreePort(p.Protocol, p.HostIP, p.HostPort, last, taken); err != nil {
				return nil, err
			}
		}
	}
	for i := range ports {
		ports[i].HostPort = number
	}
	return ports, nil
}

// formerPort is the host port that the replica already has for this port; 0: none.
func (l *locating) formerPort(p compose.Port, s seat, last uint16) uint16 {
	former, _ := l.former.seat(s.Replica)
	for _, f := range former.Ports {
		inRange := p.HostPort == 0 || p.HostPort <= f.HostPort && f.HostPort <= last
		again := slices.ContainsFunc(s.Ports, func(q network.Port) bool { return f.Overlaps(q) })
		if f.Protocol == p.Protocol && f.ContainerPort == p.ContainerPort && f.HostIP == p.HostIP && inRange && !again {
			return f.HostPort
		}
	}
	return 0
}
