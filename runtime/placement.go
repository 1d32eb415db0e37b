package runtime

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/network"
)

// defaultNetwork is the network that every service of a project is on.
const defaultNetwork = "default"

// placement is the place of a project on the network: where its replicas are,
// and what they publish. It is kept in the labels of the containers.
type placement struct {
	network network.Network
	boxes   []network.Sandbox // of the wanted replicas
	ports   []network.Port
}

// box is the sandbox of a replica.
func (p placement) box(r Replica) (network.Sandbox, bool) {
	i := slices.IndexFunc(p.boxes, func(s network.Sandbox) bool { return replicaOf(s) == r })
	if i < 0 {
		return network.Sandbox{}, false
	}
	return p.boxes[i], true
}

// hosts are the lines in the hosts file of a replica: all the others.
func (p placement) hosts(r Replica) []network.Host {
	var hosts []network.Host
	for _, s := range p.boxes {
		if replicaOf(s) != r {
			hosts = append(hosts, network.Host{Address: s.Address, Names: append([]string{s.Hostname}, s.Names...)})
		}
	}
	return hosts
}

// portsOf are the ports of one replica.
func (p placement) portsOf(s network.Sandbox) []network.Port {
	return slices.DeleteFunc(slices.Clone(p.ports), func(port network.Port) bool { return port.Address != s.Address })
}

func replicaOf(s network.Sandbox) Replica { return Replica{s.Service, s.Number} }

// sandboxOf reads the sandbox of a container from its labels.
func sandboxOf(l container.Labels) network.Sandbox {
	return network.Sandbox{
		Project:  l.Project,
		Service:  l.Service,
		Number:   l.Number,
		Network:  l.Network,
		Address:  l.Address,
		Hostname: l.Hostname,
		Names:    l.Names,
	}
}

// recorded is the placement that the containers of a project have by their
// labels, each replica by the container that current chose.
func recorded(current []container.Container) placement {
	var p placement
	for _, c := range current {
		p.network = c.Labels.Network
		p.boxes = append(p.boxes, sandboxOf(c.Labels))
		p.ports = append(p.ports, c.Labels.Ports...)
	}
	return p
}

// current chooses the container that stands for each replica: the one that
// runs, else the oldest, which has proven itself.
func current(all []container.Container) []container.Container {
	var chosen []container.Container
	for _, c := range all {
		i := slices.IndexFunc(chosen, func(o container.Container) bool {
			return o.Labels.Service == c.Labels.Service && o.Labels.Number == c.Labels.Number
		})
		switch {
		case i < 0:
			chosen = append(chosen, c)
		case better(c, chosen[i]):
			chosen[i] = c
		}
	}
	return chosen
}

func better(c, than container.Container) bool {
	if runs := c.State == container.Running; runs != (than.State == container.Running) {
		return runs
	}
	return c.Created.Before(than.Created)
}

// locator finds the place of a project, given all containers.
type locator func(all []container.Container, p *compose.Project, name string) (placement, error)

// claim is the locator of a project that is about to be applied: it keeps the
// place from other projects until unclaim.
func (e *Engine) claim(all []container.Container, p *compose.Project, name string) (placement, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	place, err := e.locateLocked(all, p, name)
	if err == nil {
		e.claims[name] = place
	}
	return place, err
}

// locate is the locator of a project that is only looked at.
func (e *Engine) locate(all []container.Container, p *compose.Project, name string) (placement, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.locateLocked(all, p, name)
}

// locateLocked needs e.mu. What containers of the project have already stays as it is.
func (e *Engine) locateLocked(all []container.Container, p *compose.Project, name string) (placement, error) {
	var place placement
	var taken []netip.Prefix
	addresses := make(map[Replica]netip.Addr)
	for _, c := range all {
		if c.Labels.Project != name {
			taken = append(taken, c.Labels.Network.Subnet)
			continue
		}
		place.network = c.Labels.Network
		addresses[Replica{c.Labels.Service, c.Labels.Number}] = c.Labels.Address
	}
	for project, other := range e.claims {
		if project != name && other.network.Subnet.IsValid() {
			taken = append(taken, other.network.Subnet)
		}
	}
	if !place.network.Subnet.IsValid() {
		var err error
		if place.network, err = e.networks.Choose(name, defaultNetwork, taken); err != nil {
			return placement{}, err
		}
	}

	used := make([]netip.Addr, 0, len(addresses))
	for _, a := range addresses {
		used = append(used, a)
	}
	for _, service := range p.Order() {
		r := Replica{service, 1}
		address, ok := addresses[r]
		if !ok {
			var err error
			if address, err = network.NextAddress(place.network, used); err != nil {
				return placement{}, err
			}
			used = append(used, address)
		}
		place.boxes = append(place.boxes, network.Sandbox{
			Project: name, Service: service, Number: r.Number,
			Network: place.network, Address: address, Hostname: service,
		})
		for _, port := range p.Services[service].Ports {
			place.ports = append(place.ports, network.Port{
				Protocol: port.Protocol, HostIP: port.HostIP, HostPort: port.HostPort,
				ContainerPort: port.ContainerPort, Address: address,
			})
		}
	}
	return place, nil
}

// claimNothing says that the project is being removed.
func (e *Engine) claimNothing(project string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.claims[project] = placement{}
}

func (e *Engine) unclaim(project string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.claims, project)
}

// placements are those of all projects: what is claimed, else what the labels say.
func (e *Engine) placements(all []container.Container) map[string]placement {
	byProject := make(map[string][]container.Container)
	for _, c := range all {
		byProject[c.Labels.Project] = append(byProject[c.Labels.Project], c)
	}
	places := make(map[string]placement, len(byProject))
	for project, containers := range byProject {
		places[project] = recorded(current(containers))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for project, claimed := range e.claims {
		places[project] = claimed
	}
	return places
}

// syncPorts makes the kernel's rules those of all projects.
func (e *Engine) syncPorts(ctx context.Context) error {
	e.ports.Lock()
	defer e.ports.Unlock()
	all, err := e.containers.List(ctx)
	if err != nil {
		return err
	}
	var ports []network.Port
	var networks []network.Network
	for _, place := range e.placements(all) {
		ports = append(ports, place.ports...)
		if place.network.Subnet.IsValid() {
			networks = append(networks, place.network)
		}
	}
	return e.networks.SyncPorts(ctx, ports, networks)
}

// sweepNetworks removes sandboxes and networks of which no container knows:
// what is left of an Apply that was killed before it created one.
func (e *Engine) sweepNetworks(ctx context.Context) error {
	e.ports.Lock()
	defer e.ports.Unlock()
	all, err := e.containers.List(ctx)
	if err != nil {
		return err
	}
	var boxes []network.Sandbox
	var networks []network.Network
	for _, c := range all {
		boxes = append(boxes, sandboxOf(c.Labels))
	}
	for _, place := range e.placements(all) {
		boxes = append(boxes, place.boxes...)
		if place.network.Subnet.IsValid() {
			networks = append(networks, place.network)
		}
	}
	return e.networks.Leftovers(ctx, boxes, networks)
}

// checkPorts refuses ports that another project or a process of this device
// has. Those that the project has already are its own.
func (e *Engine) checkPorts(ctx context.Context, all []container.Container, name string, place placement) error {
	var own, others []network.Port
	for project, p := range e.placements(slices.DeleteFunc(slices.Clone(all), func(c container.Container) bool {
		own = append(own, ownPorts(c, name)...)
		return c.Labels.Project == name
	})) {
		if project != name {
			others = append(others, p.ports...)
		}
	}
	added := slices.DeleteFunc(slices.Clone(place.ports), func(p network.Port) bool {
		return slices.ContainsFunc(own, func(o network.Port) bool {
			return o.HostPort == p.HostPort && o.Protocol == p.Protocol && sameHostIP(o.HostIP, p.HostIP)
		})
	})
	return network.CheckPorts(ctx, added, others)
}

func ownPorts(c container.Container, project string) []network.Port {
	if c.Labels.Project != project {
		return nil
	}
	return c.Labels.Ports
}

func sameHostIP(a, b netip.Addr) bool {
	every := func(a netip.Addr) bool { return !a.IsValid() || a.IsUnspecified() }
	return a == b || every(a) && every(b)
}

// hasNetwork tells whether the bridge is there.
func hasNetwork(w network.Network) bool {
	_, err := net.InterfaceByName(w.Bridge)
	return err == nil
}

// hasSandbox tells whether the namespace is pinned at path.
func hasSandbox(path string) bool {
	var at unix.Statfs_t
	return unix.Statfs(path, &at) == nil && int64(at.Type) == unix.NSFS_MAGIC
}

// astray tells whether the process pid is in another network namespace than the
// one pinned at path. A process that has just ended is nowhere.
func astray(pid int, path string) bool {
	process, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		return false
	}
	pinned, err := os.Stat(path)
	return err != nil || !os.SameFile(process, pinned)
}

func portText(p network.Port) string {
	host := p.HostIP
	if !host.IsValid() {
		host = netip.IPv4Unspecified()
	}
	return fmt.Sprintf("%s->%d/%s", netip.AddrPortFrom(host, p.HostPort), p.ContainerPort, p.Protocol)
}
