package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/network"
)

// placement says where replicas are on the networks and what they publish: those of a project in
// dependency order, or of several projects. It is kept in the details of containers.
type placement []seat

// member is a replica among those of all projects.
type member struct {
	project string
	Replica
}

func memberOf(c container.Container) member {
	return member{c.Labels.Project, Replica{c.Labels.Service, c.Labels.Number}}
}

type seat struct {
	member
	container.Seat
}

// own tells whether the replica has a sandbox of its own.
func (s seat) own() bool { return s.member == member{s.Sandbox.Project, replicaOf(s.Sandbox)} }

// isCalled tells whether the container goes by that name; never for an empty one.
func (s seat) isCalled(name string) bool {
	return name != "" && (name == s.Name || name == containerName(s.project, s.Replica))
}

// joins is the replica whose sandbox this one shares.
func (s seat) joins() string {
	if s.Sandbox.Project == s.project {
		return replicaOf(s.Sandbox).String()
	}
	return replicaOf(s.Sandbox).String() + " of project " + s.Sandbox.Project
}

func (p placement) seat(r Replica) (seat, bool) {
	i := slices.IndexFunc(p, func(s seat) bool { return s.Replica == r })
	if i < 0 {
		return seat{}, false
	}
	return p[i], true
}

// networks returns those of the sandboxes, by name. A replica that joins one only knows former ones.
func (p placement) networks() []network.Network {
	byName := make(map[string]network.Network)
	for _, box := range p.sandboxes() {
		for _, a := range box.Attached {
			byName[a.Network.Name] = a.Network
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b network.Network) int { return cmp.Compare(a.Name, b.Name) })
}

func (p placement) networkNames() []string {
	var names []string
	for _, w := range p.networks() {
		names = append(names, w.Name)
	}
	return names
}

func (p placement) sandboxes() []network.Sandbox {
	var boxes []network.Sandbox
	for _, s := range p {
		if s.own() {
			boxes = append(boxes, s.Sandbox)
		}
	}
	return boxes
}

func (p placement) ports() []network.Port {
	var all []network.Port
	for _, s := range p {
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

func seatOf(c container.Container) seat { return seat{memberOf(c), c.Labels.Seat} }

func recorded(containers []container.Container) placement {
	p := make(placement, len(containers))
	for i, c := range containers {
		p[i] = seatOf(c)
	}
	return p
}

// current chooses one container for each replica: the running one, else the oldest, proven one.
func current(all []container.Container) []container.Container {
	var chosen []container.Container
	index := make(map[member]int)
	for _, c := range all {
		i, ok := index[memberOf(c)]
		if !ok {
			index[memberOf(c)] = len(chosen)
			chosen = append(chosen, c)
			continue
		}
		runs := c.State == container.Running
		if other := chosen[i].State == container.Running; runs && !other || runs == other && c.Created.Before(chosen[i].Created) {
			chosen[i] = c
		}
	}
	return chosen
}

type places struct {
	containers *container.Containers
	networks   *network.Networks

	shared sync.Mutex // one change of what projects share on the network at a time
	mu     sync.Mutex
	claims map[string]placement // of the projects that Apply or Remove works on
	ended  uint64               // claims that are no more
}

// allRecorded reads all containers from records, and states only of replicas with several.
func (pl *places) allRecorded(ctx context.Context) ([]container.Container, error) {
	all, err := pl.containers.Recorded(ctx)
	if err != nil {
		return nil, err
	}
	count := make(map[member]int, len(all))
	for _, c := range all {
		count[memberOf(c)]++
	}
	isRival := func(c container.Container) bool { return count[memberOf(c)] > 1 }
	isAlone := func(c container.Container) bool { return !isRival(c) }
	rivals, err := pl.containers.WithStates(ctx, slices.DeleteFunc(slices.Clone(all), isAlone))
	return append(slices.DeleteFunc(all, isRival), rivals...), err
}

// claim finds the place of a project that is about to be applied and reserves it until
// unclaim. It also returns the containers of the project. The error is a Conflict if another
// project has, or claimed earlier, a port or name of it, or if a process of this device or
// another owner has a port.
//
// A claim that ends has become containers, which a list made earlier lacks. So the list is
// made again: the project could be given a place that is taken.
func (pl *places) claim(ctx context.Context, p *Project, replicas []planned) (own []container.Container, place placement, err error) {
	for current := false; err == nil && !current; {
		pl.mu.Lock()
		ended := pl.ended
		pl.mu.Unlock()
		var all []container.Container
		if all, err = pl.allRecorded(ctx); err == nil {
			place, current, err = pl.claimAmong(ctx, all, ended, p, replicas)
		}
		own = slices.DeleteFunc(all, func(c container.Container) bool { return c.Labels.Project != p.Name })
	}
	if err != nil {
		return nil, nil, fail(Internal, p.Name, err)
	}
	return own, place, nil
}

// claimAmong is claim among the listed containers; not current if a claim has ended since.
func (pl *places) claimAmong(ctx context.Context, all []container.Container, ended uint64, p *Project, replicas []planned) (place placement, current bool, err error) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if pl.ended != ended {
		return nil, false, nil
	}
	if place, err = pl.locateLocked(ctx, all, p, replicas); err == nil {
		pl.claims[p.Name] = place
	}
	return place, true, err
}

// claimNothing notes that the project is being removed.
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

// isClaimed tells whether a project is being applied: its mounts are not known yet.
func (pl *places) isClaimed(project string) bool {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return len(pl.claims[project]) > 0
}

// everybody is the place of all projects, by name: as claimed, else as labelled.
func (pl *places) everybody(all []container.Container) placement {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.everybodyLocked(all)
}

func (pl *places) everybodyLocked(all []container.Container) placement {
	byProject := maps.Clone(pl.claims)
	for _, s := range recorded(current(all)) {
		if _, claimed := pl.claims[s.project]; !claimed {
			byProject[s.project] = append(byProject[s.project], s)
		}
	}
	var everybody placement
	for _, project := range slices.Sorted(maps.Keys(byProject)) {
		everybody = append(everybody, byProject[project]...)
	}
	return everybody
}

// hostsFor is the hosts file of a replica: all that share a network with it, its project first.
func hostsFor(everybody placement, of seat) []network.Host {
	var own, others []network.Host
	for _, s := range everybody {
		switch {
		case !s.own():
		case s.project != of.project:
			others = append(others, linesFor(s, of)...)
		case s.member != of.member:
			own = append(own, linesFor(s, of)...)
		}
	}
	return append(own, others...)
}

// linesFor returns the hosts lines of s for another: its addresses on their first shared network.
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

func containerName(project string, r Replica) string { return project + "-" + r.String() }

// syncPorts updates rules and hosts files of all projects: others may have joined or left a network.
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

// syncLocked is syncPorts without the final waits.
func (pl *places) syncLocked(ctx context.Context) (waits []func() error, err error) {
	pl.shared.Lock()
	defer pl.shared.Unlock()
	all, err := pl.allRecorded(ctx)
	if err != nil {
		return nil, err
	}
	everybody := pl.everybody(all)
	err = pl.networks.SyncPorts(ctx, everybody.ports(), everybody.networks())
	for _, s := range everybody {
		if !s.own() {
			continue
		}
		wait, failed := pl.networks.BeginHosts(s.Sandbox, hostsFor(everybody, s))
		switch {
		case failed == nil:
			waits = append(waits, wait)
		case !errors.Is(failed, fs.ErrNotExist): // it is not made yet
			err = errors.Join(err, failed)
		}
	}
	return waits, err
}

// ensure makes the networks and sandboxes of a project, safe from a concurrent sweep.
func (pl *places) ensure(ctx context.Context, p placement) error {
	pl.shared.Lock()
	defer pl.shared.Unlock()
	return pl.networks.Ensure(ctx, p.networks(), p.sandboxes())
}

// sweep removes sandboxes and networks that are no longer needed: leftovers of an Apply
// killed before it created a container, and those that only containers outside the claim of
// project need. project is "" if none is being changed. Other projects keep the sandboxes of
// their containers, and the networks of their claims: if two leave a network at the same
// time, one of them has to remove it.
func (pl *places) sweep(ctx context.Context, project string) error {
	pl.shared.Lock()
	defer pl.shared.Unlock()
	pl.mu.Lock()
	claims := maps.Clone(pl.claims) // before the records are read: a claim that ends has become containers
	pl.mu.Unlock()
	all, err := pl.containers.Recorded(ctx)
	if err != nil {
		return err
	}
	var needed, others placement
	for _, claim := range claims {
		needed = append(needed, claim...)
	}
	for _, s := range recorded(all) {
		if _, claimed := claims[s.project]; !claimed {
			needed = append(needed, s)
		}
		if s.project != project {
			others = append(others, s)
		}
	}
	return pl.networks.Leftovers(ctx, append(needed, others...).sandboxes(), needed.networks())
}

func conflict(object, format string, args ...any) error {
	return &Error{Code: Conflict, Object: object, Err: fmt.Errorf(format, args...)}
}
