package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/network"
)

// placement is the place of a project on the device's networks: where its
// replicas are, and what they publish. It is kept in the details of containers.
type placement struct {
	seats []seat // of the wanted replicas, each after those it depends on
}

type seat struct {
	Replica
	project string
	container.Seat
}

// own tells whether the replica has a sandbox of its own.
func (s seat) own() bool { return s.Sandbox.Project == s.project && replicaOf(s.Sandbox) == s.Replica }

// isCalled tells whether the container goes by that name; none goes by an empty one.
func (s seat) isCalled(name string) bool {
	return name != "" && (name == s.Name || name == containerName(s.project, s.Replica))
}

// joins names whose sandbox the replica lives in, where that is not its own.
func (s seat) joins() string {
	switch {
	case s.own():
		return ""
	case s.Sandbox.Project == s.project:
		return replicaOf(s.Sandbox).String()
	}
	return replicaOf(s.Sandbox).String() + " of project " + s.Sandbox.Project
}

func (p placement) seat(r Replica) (seat, bool) {
	i := slices.IndexFunc(p.seats, func(s seat) bool { return s.Replica == r })
	if i < 0 {
		return seat{}, false
	}
	return p.seats[i], true
}

// networks are those that the replicas are on, each once, sorted by name. Who
// joins another one's sandbox knows only where that was when it joined.
func (p placement) networks() []network.Network {
	byName := make(map[string]network.Network)
	for _, s := range p.seats {
		if !s.own() {
			continue
		}
		for _, a := range s.Sandbox.Attached {
			byName[a.Network.Name] = a.Network
		}
	}
	list := make([]network.Network, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		list = append(list, byName[name])
	}
	return list
}

func (p placement) ports() []network.Port {
	var all []network.Port
	for _, s := range p.seats {
		all = append(all, s.Ports...)
	}
	return all
}

func replicaOf(s network.Sandbox) Replica { return Replica{s.Service, s.Number} }

func attachment(s network.Sandbox, name string) (network.Attachment, bool) {
	i := slices.IndexFunc(s.Attached, func(a network.Attachment) bool { return a.Network.Name == name })
	if i < 0 {
		return network.Attachment{}, false
	}
	return s.Attached[i], true
}

func seatOf(c container.Container) seat {
	return seat{Replica{c.Labels.Service, c.Labels.Number}, c.Labels.Project, c.Labels.Seat}
}

func recorded(containers []container.Container) placement {
	p := placement{seats: make([]seat, len(containers))}
	for i, c := range containers {
		p.seats[i] = seatOf(c)
	}
	return p
}

// current chooses the container that stands for each replica: the one that
// runs, else the oldest, which has proven itself.
func current(all []container.Container) []container.Container {
	var chosen []container.Container
	index := make(map[Replica]int)
	for _, c := range all {
		r := Replica{c.Labels.Service, c.Labels.Number}
		i, ok := index[r]
		switch {
		case !ok:
			index[r] = len(chosen)
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

// places are where projects are on the device's networks, and what they publish.
type places struct {
	containers *container.Containers
	networks   *network.Networks

	shared sync.Mutex // one change of what projects share on the network at a time
	mu     sync.Mutex
	claims map[string]placement // of the projects that Apply or Remove works on
	ended  uint64               // claims that are no more
}

// allRecorded returns the containers of all projects as their records have them. It
// asks what a container does only where a replica has several: current chooses by it.
func (pl *places) allRecorded(ctx context.Context) ([]container.Container, error) {
	all, err := pl.containers.Recorded(ctx)
	if err != nil {
		return nil, err
	}
	type replica struct {
		project string
		Replica
	}
	of := func(c container.Container) replica { return replica{c.Labels.Project, seatOf(c).Replica} }
	count := make(map[replica]int, len(all))
	for _, c := range all {
		count[of(c)]++
	}
	var rivals []container.Container
	var at []int
	for i, c := range all {
		if count[of(c)] > 1 {
			rivals, at = append(rivals, c), append(at, i)
		}
	}
	if len(rivals) == 0 {
		return all, nil
	}
	if rivals, err = pl.containers.WithStates(ctx, rivals); err != nil {
		return nil, err
	}
	for i, c := range rivals {
		all[at[i]] = c
	}
	return all, nil
}

// claim finds the place of a project that is about to be applied, and keeps it from
// other projects until unclaim, also after an error. It returns the containers of the
// project, too. The error is a Conflict where another project has a port or a name of
// it, or has claimed it before (of two that want the same, the first one gets it), and
// where a process of this device or another owner has a port.
//
// A claim that ends has become containers. What was listed before that knows neither,
// so it is listed again: the project would be given a place that somebody has.
func (pl *places) claim(ctx context.Context, p *Project) (own []container.Container, place placement, err error) {
	for current := false; !current; {
		pl.mu.Lock()
		ended := pl.ended
		pl.mu.Unlock()
		all, err := pl.allRecorded(ctx)
		if err != nil {
			return nil, placement{}, &Error{Code: Internal, Object: p.Name, Err: err}
		}
		if place, current, err = pl.claimAmong(ctx, all, ended, p); err != nil {
			return nil, placement{}, fail(codeOfNetwork(err), p.Name, err)
		}
		own = slices.DeleteFunc(all, func(c container.Container) bool { return c.Labels.Project != p.Name })
	}
	if err := pl.checkPorts(ctx, own, place); err != nil {
		return nil, placement{}, fail(codeOfNetwork(err), p.Name, err)
	}
	return own, place, nil
}

// claimAmong is claim, given all containers, as long as no other claim has ended since.
func (pl *places) claimAmong(ctx context.Context, all []container.Container, ended uint64, p *Project) (place placement, current bool, err error) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if pl.ended != ended {
		return placement{}, false, nil
	}
	if place, err = pl.locateLocked(ctx, all, p); err != nil {
		return placement{}, false, err
	}
	if err := pl.checkOthersLocked(all, p.Name, place); err != nil {
		return placement{}, false, err
	}
	pl.claims[p.Name] = place
	return place, true, nil
}

// claimNothing says that the project is being removed.
func (pl *places) claimNothing(project string) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.claims[project] = placement{}
}

func (pl *places) unclaim(project string) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	delete(pl.claims, project)
	pl.ended++
}

// isClaimed tells whether a project is being applied: what it is about to mount
// is not yet known.
func (pl *places) isClaimed(project string) bool {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return len(pl.claims[project].seats) > 0
}

// placements are those of all projects: what is claimed, else what the labels say.
func (pl *places) placements(all []container.Container) map[string]placement {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.placementsLocked(all)
}

func (pl *places) placementsLocked(all []container.Container) map[string]placement {
	byProject := make(map[string][]container.Container)
	for _, c := range all {
		byProject[c.Labels.Project] = append(byProject[c.Labels.Project], c)
	}
	places := make(map[string]placement, len(byProject))
	for project, containers := range byProject {
		places[project] = recorded(current(containers))
	}
	for project, claimed := range pl.claims {
		places[project] = claimed
	}
	return places
}

// hostsFor are the lines in the hosts file of a replica: all that it shares a
// network with, those of its own project first.
func hostsFor(places map[string]placement, of seat) []network.Host {
	projects := []string{of.project}
	for _, name := range slices.Sorted(maps.Keys(places)) {
		if name != of.project {
			projects = append(projects, name)
		}
	}
	var hosts []network.Host
	for _, project := range projects {
		for _, s := range places[project].seats {
			if s.own() && (project != of.project || s.Replica != of.Replica) {
				hosts = append(hosts, linesFor(s, of)...)
			}
		}
	}
	return hosts
}

// linesFor are the lines for one replica in the hosts file of another: its
// addresses on the first network that both are on.
func linesFor(s, of seat) []network.Host {
	for _, own := range of.Sandbox.Attached {
		a, shared := attachment(s.Sandbox, own.Network.Name)
		if !shared {
			continue
		}
		names := []string{s.Service}
		add := func(more ...string) {
			for _, name := range more {
				if name != "" && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
		if s.Sandbox.Hostname != s.Service && s.project == of.project {
			add(s.Sandbox.Hostname)
		}
		add(a.Aliases...)
		add(s.Name, containerName(s.project, s.Replica))
		for _, link := range of.Sandbox.Links {
			if link.Service == s.Service && s.project == of.project {
				add(link.Name)
			}
		}
		var hosts []network.Host
		for _, address := range []netip.Addr{a.Address, a.Address6} {
			if address.IsValid() {
				hosts = append(hosts, network.Host{Address: address, Names: names})
			}
		}
		return hosts
	}
	return nil
}

// containerName is how a container is called that has no container_name.
func containerName(project string, r Replica) string { return project + "-" + r.String() }

// syncPorts makes the kernel's rules those of all projects, and brings the hosts
// files up to date: another project on the same network may have come or gone.
func (pl *places) syncPorts(ctx context.Context) error {
	waits, err := pl.syncLocked(ctx)
	// Not under the lock: a container can hold up the writing of its files.
	for _, wait := range waits {
		if e := wait(); e != nil && !errors.Is(e, fs.ErrNotExist) { // its project may be removing it right now
			err = errors.Join(err, e)
		}
	}
	return err
}

// syncLocked is syncPorts, less what the functions that it returns wait for.
func (pl *places) syncLocked(ctx context.Context) (waits []func() error, err error) {
	pl.shared.Lock()
	defer pl.shared.Unlock()
	all, err := pl.allRecorded(ctx)
	if err != nil {
		return nil, err
	}
	places := pl.placements(all)
	var ports []network.Port
	var networks []network.Network
	for _, place := range places {
		ports = append(ports, place.ports()...)
		networks = append(networks, place.networks()...)
	}
	if err := pl.networks.SyncPorts(ctx, ports, networks); err != nil {
		return nil, err
	}
	for _, place := range places {
		for _, s := range place.seats {
			if !s.own() || len(s.Sandbox.Attached) == 0 || !pl.networks.Has(s.Sandbox) {
				continue
			}
			wait, err := pl.networks.BeginHosts(s.Sandbox, hostsFor(places, s))
			switch {
			case err == nil:
				waits = append(waits, wait)
			case !errors.Is(err, fs.ErrNotExist):
				return waits, err
			}
		}
	}
	return waits, nil
}

// ensureNetwork makes a network; nobody removes it meanwhile.
func (pl *places) ensureNetwork(ctx context.Context, w network.Network) error {
	pl.shared.Lock()
	defer pl.shared.Unlock()
	return pl.networks.EnsureNetwork(ctx, w)
}

// removeNetwork removes a network, unless a project has come to need it.
func (pl *places) removeNetwork(ctx context.Context, w network.Network) error {
	pl.shared.Lock()
	defer pl.shared.Unlock()
	all, err := pl.allRecorded(ctx)
	if err != nil {
		return err
	}
	for _, place := range pl.placements(all) {
		if slices.ContainsFunc(place.networks(), func(o network.Network) bool { return o.Name == w.Name }) {
			return nil
		}
	}
	return pl.networks.RemoveNetwork(ctx, w)
}

// sweepNetworks removes sandboxes and networks of which no container knows:
// what is left of an Apply that was killed before it created one.
func (pl *places) sweepNetworks(ctx context.Context) error {
	pl.shared.Lock()
	defer pl.shared.Unlock()
	all, err := pl.allRecorded(ctx)
	if err != nil {
		return err
	}
	var boxes []network.Sandbox
	var networks []network.Network
	places := slices.Collect(maps.Values(pl.placements(all)))
	places = append(places, recorded(all)) // also those that current did not choose
	for _, place := range places {
		networks = append(networks, place.networks()...)
		for _, s := range place.seats {
			if s.own() {
				boxes = append(boxes, s.Sandbox)
			}
		}
	}
	return pl.networks.Leftovers(ctx, boxes, networks)
}

// checkOthersLocked refuses ports and names that another project has or has
// claimed. The caller holds mu; if it claims the place, it does so before it lets mu
// go.
func (pl *places) checkOthersLocked(all []container.Container, name string, place placement) error {
	places := pl.placementsLocked(all)
	delete(places, name)
	for _, project := range slices.Sorted(maps.Keys(places)) {
		for _, other := range places[project].seats {
			for _, s := range place.seats {
				for _, chosen := range []string{s.Name, other.Name} {
					if s.isCalled(chosen) && other.isCalled(chosen) {
						return conflict(s.Service, "cannot be named %s: service %s of project %s has that name", chosen, other.Service, project)
					}
				}
				for _, p := range s.Ports {
					if i := slices.IndexFunc(other.Ports, func(q network.Port) bool { return p.Overlaps(q) }); i >= 0 {
						return conflict(s.Service, "cannot publish port %s: service %s of project %s has it", p, other.Service, project)
					}
				}
			}
		}
	}
	return nil
}

// checkPorts refuses ports that a process of this device or another owner has. Ports that the
// project's containers have already are its own.
func (pl *places) checkPorts(ctx context.Context, own []container.Container, place placement) error {
	had := recorded(own).ports()
	var added []network.Port
	for _, s := range place.seats {
		for _, p := range s.Ports {
			if !slices.ContainsFunc(had, func(o network.Port) bool {
				return o.HostPort == p.HostPort && o.Protocol == p.Protocol && sameHostIP(o.HostIP, p.HostIP)
			}) {
				added = append(added, p)
			}
		}
	}
	foreign, err := pl.networks.ForeignPorts(ctx)
	if err != nil {
		return err
	}
	err = pl.networks.CheckPorts(added, foreign)
	if refused := new(network.PortError); errors.As(err, &refused) {
		for _, s := range place.seats {
			if slices.ContainsFunc(s.Ports, func(p network.Port) bool { return p.Overlaps(refused.Port) }) {
				return fail(codeOfNetwork(err), s.Service, err)
			}
		}
	}
	return err
}

func conflict(object, format string, args ...any) error {
	return &Error{Code: Conflict, Object: object, Err: fmt.Errorf(format, args...)}
}

func sameHostIP(a, b netip.Addr) bool {
	every := func(a netip.Addr) bool { return !a.IsValid() || a.IsUnspecified() }
	return a == b || every(a) && every(b)
}

// hasNetwork tells whether the bridge is there. A network without one has
// nothing but the links in its sandboxes.
func hasNetwork(w network.Network) bool {
	if w.Bridge == "" || w.Driver != "" {
		return true
	}
	_, err := net.InterfaceByName(w.Bridge)
	return err == nil
}
