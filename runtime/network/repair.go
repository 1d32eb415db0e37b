package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// repairDelay is how long after a change damage is looked for: what destroys
	// something, or makes it, is many changes.
	repairDelay = 200 * time.Millisecond

	// Whoever breaks the same thing again and again has it repaired at growing
	// intervals, until it held for so long.
	repairAgainFirst = time.Second
	repairAgainLast  = time.Minute
	repairHeld       = 10 * time.Minute
)

// intended is what Ensure functions made and Remove functions did not remove
// since the start.
type intended struct {
	mu        sync.Mutex
	networks  map[string]Network // by bridge
	sandboxes map[string]Sandbox // by file
}

func (i *intended) network(w Network) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.networks[w.Bridge] = w
}

func (i *intended) sandbox(s Sandbox) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.sandboxes[s.file()] = s
}

// forget says that the networks and sandboxes for which gone holds are removed.
func (i *intended) forget(network func(bridge string) bool, sandbox func(file string) bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	maps.DeleteFunc(i.networks, func(bridge string, _ Network) bool { return network(bridge) })
	maps.DeleteFunc(i.sandboxes, func(file string, _ Sandbox) bool { return sandbox(file) })
}

func none(string) bool { return false }

func only(name string) func(string) bool { return func(other string) bool { return other == name } }

func (i *intended) all() ([]Network, []Sandbox) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var networks []Network
	for _, bridge := range slices.Sorted(maps.Keys(i.networks)) {
		networks = append(networks, i.networks[bridge])
	}
	var sandboxes []Sandbox
	for _, file := range slices.Sorted(maps.Keys(i.sandboxes)) {
		sandboxes = append(sandboxes, i.sandboxes[file])
	}
	return networks, sandboxes
}

// Repair repairs, until ctx ends, what others destroy of what was made since the
// start: bridges, their addresses and routes, the links of sandboxes, their
// files, and forwarding. It hears of it from the kernel. Where the namespace of a
// sandbox is no longer pinned it calls lost, for that takes the process that is in
// there: see [Networks.Adopt].
func (n *Networks) Repair(ctx context.Context, lost func()) (err error) {
	links, err := watchLinks()
	if err != nil {
		return err
	}
	mounts, err := watchMounts()
	if err != nil {
		return errors.Join(err, links.Close())
	}
	files, err := watchFiles()
	if err != nil {
		return errors.Join(err, mounts.Close(), links.Close())
	}
	var readers sync.WaitGroup
	defer readers.Wait()
	defer func() { err = errors.Join(err, files.Close(), mounts.Close(), links.Close()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed := make(chan struct{}, 1)
	defer n.watched.links.Store(false)
	var all atomic.Bool // to be looked at; else what is mounted
	all.Store(true)
	tell := func(whole bool) {
		if whole {
			all.Store(true)
		}
		n.watched.links.Store(false)
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	failed := make(chan error, 3)
	readers.Go(func() { failed <- n.hearLinks(ctx, links, func() { tell(true) }) })
	for what, wait := range map[string]func() error{"mounts": mounts.wait, "files": files.wait} {
		readers.Go(func() {
			for ctx.Err() == nil {
				if err := wait(); err != nil {
					failed <- fmt.Errorf("cannot watch %s: %w", what, err)
					return
				}
				tell(false)
			}
		})
	}

	r := repairs{n: n, lost: lost, files: files, attempts: make(map[string]*attempt)}
	due := time.NewTimer(0) // what happened before is not told
	defer due.Stop()
	waiting := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return err
		case <-changed:
			n.watched.links.Store(false)
			if !waiting {
				waiting = true
				due.Reset(repairDelay)
			}
		case <-due.C:
			waiting = false
			again, intact := r.run(all.Swap(false))
			if !again.IsZero() {
				all.Store(true)
				due.Reset(max(repairDelay, time.Until(again)))
			}
			n.watched.links.Store(intact)
			if len(changed) > 0 {
				n.watched.links.Store(false)
			}
		}
	}
}

// hearLinks tells of changes to what some margolite made.
func (n *Networks) hearLinks(ctx context.Context, links *linkWatcher, tell func()) error {
	for {
		changes, err := links.wait()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // too many at once: anything
			tell()
			continue
		case err != nil:
			return fmt.Errorf("cannot watch links and routes: %w", err)
		}
		if slices.ContainsFunc(changes, n.concerns) {
			tell()
		}
	}
}

// concerns says whether a change is one of what we made, as far as that can be
// told without looking. Where it is routes of others that change, nobody looks.
func (n *Networks) concerns(c change) bool {
	if c.forwarding || isOurs(c.name) {
		return true
	}
	known := n.indexes.Load()
	return known != nil && slices.Contains(*known, c.link)
}

// repairs is what Repair remembers.
type repairs struct {
	n        *Networks
	lost     func()
	files    *fileWatcher
	attempts map[string]*attempt // by what is repaired
	next     time.Time           // when the first one that has to wait is due
	sound    bool                // links and rules were, when they were last looked at
}

type attempt struct {
	last, next time.Time
	pause      time.Duration
}

// run looks for damage and repairs it: of everything, or else of what is mounted. It
// says when it has to run again, zero where nothing is left to do, and whether
// everything is intact now.
func (r *repairs) run(all bool) (again time.Time, intact bool) {
	r.next = time.Time{}
	maps.DeleteFunc(r.attempts, func(_ string, a *attempt) bool { return time.Since(a.last) > repairHeld })
	r.n.mu.Lock()
	networks, sandboxes := r.n.intended.all()
	lost, err := r.repairMounted(sandboxes)
	if all && err == nil {
		err = r.repairLinks(networks, sandboxes)
		r.sound = err == nil
	}
	r.n.mu.Unlock()
	if err != nil {
		r.n.logger.Warn("cannot check the network for damage", "error", err)
	}
	if lost && r.due("namespaces of sandboxes") {
		r.n.logger.Warn("sandbox namespaces are no longer pinned, checking their services")
		r.lost()
	}
	return r.next, err == nil && r.sound && !lost && r.next.IsZero()
}

// due says whether it is time to repair something that is damaged.
func (r *repairs) due(what string) bool {
	now := time.Now()
	a := r.attempts[what]
	if a == nil {
		a = &attempt{pause: repairAgainFirst}
		r.attempts[what] = a
	}
	if now.Before(a.next) {
		if r.next.IsZero() || a.next.Before(r.next) {
			r.next = a.next
		}
		return false
	}
	a.last, a.next, a.pause = now, now.Add(a.pause), min(2*a.pause, repairAgainLast)
	return true
}

// repairDamage repairs one thing, if it is damaged and its time has come.
func (r *repairs) repairDamage(what, damage string, repair func() error) (repaired bool) {
	if damage == "" || !r.due(what) {
		return false
	}
	if err := repair(); err != nil {
		r.n.logger.Warn("cannot repair "+what, "damage", damage, "error", err)
		if again := r.attempts[what].next; r.next.IsZero() || again.Before(r.next) {
			r.next = again
		}
		return false
	}
	r.n.logger.Warn("repaired "+what, "damage", damage)
	return true
}

// repairMounted goes through the pins and files of all sandboxes. lost says that
// namespaces are not pinned any more. The caller holds the lock of Networks.
func (r *repairs) repairMounted(sandboxes []Sandbox) (lost bool, err error) {
	n := r.n
	for _, s := range sandboxes {
		if !s.Host {
			if pinned, err := isPin(n.pin(s)); err != nil || !pinned {
				lost = true
				continue
			}
		}
		files := n.filesOf(s.file())
		if err := r.files.add(files.dir); err != nil && !errors.Is(err, os.ErrNotExist) { // before they are looked at
			return lost, fmt.Errorf("cannot watch files of sandbox %s: %w", s.file(), err)
		}
		r.repairDamage("files of sandbox "+s.file(), n.damagedFiles(s), func() error {
			if err := n.prepareFiles(s.file()); err != nil {
				return err
			}
			files.begin()
			return r.files.add(files.dir)
		})
	}
	return lost, nil
}

// repairLinks goes through the links, addresses and routes that there should be, and
// forwarding. The caller holds the lock of Networks.
func (r *repairs) repairLinks(networks []Network, sandboxes []Sandbox) error {
	n := r.n
	at, err := surveyed()
	if err != nil {
		return err
	}
	repaired := false
	for _, w := range networks {
		repaired = r.repairDamage("network "+w.Name, n.damageOf(at, w), func() error {
			return withLinks(func(c *netlink.Handle) error {
				if !w.isBridge() {
					return n.owner.ensureParent(c, w)
				}
				err := n.owner.ensureBridge(c, w)
				if err == nil {
					err = ensureConnected(c, w)
				}
				return err
			})
		}) || repaired
	}
	for _, f := range families() {
		if rules, ok := n.synced[f.table]; ok && !rules.empty() {
			damage := ""
			if on, err := forwarding(f); err == nil && !on {
				damage = "forwarding is disabled"
			}
			r.repairDamage(f.forwardingKey(), damage, func() error { return n.syncRules(n.ports, n.networks) })
		}
	}
	if repaired { // the links of the host are others now
		if at, err = surveyed(); err != nil {
			return err
		}
	}
	repaired = false
	for _, s := range sandboxes {
		pin := n.pin(s)
		if pinned, err := isPin(pin); !s.Host && (err != nil || !pinned) {
			continue // its services are looked at
		}
		repaired = r.repairDamage("links of sandbox "+s.file(), n.damagedLinks(at, s), func() error {
			return withLinks(func(c *netlink.Handle) error { return n.owner.ensureLinks(c, s, pin) })
		}) || repaired
	}
	if repaired {
		if at, err = surveyed(); err != nil {
			return err
		}
	}
	n.noteIndexes(at, networks, sandboxes)
	return nil
}

// survey is what the host has.
type survey struct {
	links     map[string]netlink.Link
	addresses []netlink.Addr
	routes    []netlink.Route // of bridges, in the main table
}

func surveyed() (survey, error) {
	at := survey{links: make(map[string]netlink.Link)}
	err := withLinks(func(c *netlink.Handle) error {
		links, err := allLinks(nil)
		if err != nil {
			return err
		}
		bridges := make(map[int]bool)
		for _, link := range links {
			name := link.Attrs().Name
			at.links[name] = link
			bridges[link.Attrs().Index] = isLinkName(bridgePrefix, name)
		}
		if at.addresses, err = addresses(c, nil, netlink.FAMILY_ALL); err != nil {
			return err
		}
		for _, f := range families() {
			routes, err := allRoutes(c, f, func(r netlink.Route) bool { return bridges[r.LinkIndex] && r.Table == unix.RT_TABLE_MAIN })
			if err != nil {
				return err
			}
			at.routes = append(at.routes, routes...)
		}
		return nil
	})
	return at, err
}

// noteIndexes notes which links changes are looked at for, besides those with
// names of ours.
func (n *Networks) noteIndexes(at survey, networks []Network, sandboxes []Sandbox) {
	var indexes []int
	for _, w := range networks {
		for _, name := range []string{w.Bridge, w.Parent} {
			if link, ok := at.links[name]; ok {
				indexes = append(indexes, link.Attrs().Index)
			}
		}
	}
	for _, s := range sandboxes {
		for _, name := range s.links(n.owner) {
			if link, ok := at.links[name]; ok {
				indexes = append(indexes, link.Attrs().Index)
			}
		}
	}
	n.indexes.Store(&indexes)
}

// damageOf says what is wrong with a network's link; empty: nothing.
func (n *Networks) damageOf(at survey, w Network) string {
	if !w.isBridge() {
		parent, there := at.links[w.Parent]
		switch {
		case !there && strings.Contains(w.Parent, "."):
			return "link " + w.Parent + " is gone"
		case there && !isUp(parent) && n.owner.madeFor(w, parent):
			return "link " + w.Parent + " is down"
		}
		return ""
	}
	bridge, there := at.links[w.Bridge]
	switch {
	case !there:
		return "bridge " + w.Bridge + " is gone"
	case n.owner.isOthers(bridge):
		return ""
	case bridge.Type() == kindBridge && !isUp(bridge):
		return "bridge " + w.Bridge + " is down"
	}
	for _, p := range w.prefixes(w.Gateway, w.Gateway6) {
		if !slices.ContainsFunc(at.addresses, func(a netlink.Addr) bool {
			return a.LinkIndex == bridge.Attrs().Index && a.Peer == nil && prefixOf(a.IPNet) == p
		}) {
			return fmt.Sprintf("bridge %s has no address %s", w.Bridge, p)
		}
		if !at.connects(bridge, p) {
			return fmt.Sprintf("there is no route to %s through bridge %s", p.Masked(), w.Bridge)
		}
	}
	return ""
}

// connects says whether there is a route to the subnet by the link.
func (at survey) connects(link netlink.Link, p netip.Prefix) bool {
	return slices.ContainsFunc(at.routes, func(r netlink.Route) bool {
		return r.LinkIndex == link.Attrs().Index && prefixOf(r.Dst) == p.Masked()
	})
}

// ensureConnected brings back the routes to the subnets of a bridge, which the
// kernel makes with the addresses.
func ensureConnected(c *netlink.Handle, w Network) error {
	at, err := surveyed()
	if err != nil {
		return err
	}
	bridge, there := at.links[w.Bridge]
	if !there {
		return fmt.Errorf("bridge %s is gone", w.Bridge)
	}
	for _, p := range w.prefixes(w.Gateway, w.Gateway6) {
		if at.connects(bridge, p) {
			continue
		}
		route := &netlink.Route{
			Dst: ipNet(p.Masked()), LinkIndex: bridge.Attrs().Index,
			Scope: netlink.SCOPE_LINK, Protocol: unix.RTPROT_KERNEL,
		}
		if p.Addr().Is6() {
			route.Scope, route.Priority = netlink.SCOPE_UNIVERSE, 256 // as the kernel does
		}
		if err := c.RouteReplace(route); err != nil {
			return fmt.Errorf("cannot set route to %s: %w", p.Masked(), err)
		}
	}
	return nil
}

// damagedLinks says what is wrong with the host's ends of a sandbox's links;
// what a container does within its namespace is its own affair.
func (n *Networks) damagedLinks(at survey, s Sandbox) string {
	for i, name := range s.links(n.owner) {
		if name == "" {
			continue
		}
		network := s.Attached[i].Network
		bridge, there := at.links[network.Bridge]
		if !there {
			continue // first that
		}
		link, there := at.links[name]
		switch {
		case !there:
			return "link " + name + " is gone"
		case n.owner.isOthers(link):
		case link.Attrs().MasterIndex != bridge.Attrs().Index:
			return fmt.Sprintf("link %s is not a port of bridge %s", name, network.Bridge)
		case !isUp(link):
			return "link " + name + " is down"
		}
	}
	return ""
}

// Has reports whether the files of a sandbox are there, and its namespace is pinned where
// it has one.
func (n *Networks) Has(s Sandbox) bool {
	pinned, err := isPin(n.pin(s))
	return (s.Host || pinned && err == nil) && n.damagedFiles(s) == ""
}

func (n *Networks) damagedFiles(s Sandbox) string {
	paths := n.Paths(s)
	for _, path := range []string{paths.Hosts, paths.ResolvConf, paths.Hostname} {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			return path + " is gone"
		}
	}
	return ""
}

// Adopt pins the namespace of a sandbox again, in which a process still is. It
// says whether the sandbox is pinned: a process that is somewhere else, or in a
// namespace that is not provably the sandbox's, does not help.
func (n *Networks) Adopt(ctx context.Context, s Sandbox, pid int) (bool, error) {
	if s.Host || pid <= 0 {
		return s.Host, ctx.Err()
	}
	path := n.pin(s)
	if pinned, err := isPin(path); pinned || err != nil {
		return pinned, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	err := errors.Join(ctx.Err(), s.check())
	adopted := false
	if err == nil {
		adopted, err = n.adopt(s, path, pid)
	}
	if err != nil {
		return false, fmt.Errorf("cannot pin the namespace of %s again: %w", s, err)
	}
	if adopted {
		n.logger.Warn("repaired the pin of a network namespace", "sandbox", s.file())
	}
	return adopted, nil
}

func (n *Networks) adopt(s Sandbox, path string, pid int) (bool, error) {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false, nil // it ended
	}
	if err != nil {
		return false, err
	}
	defer ns.Close()
	host, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return false, err
	}
	theirs, err := ns.Stat()
	if err != nil || os.SameFile(host, theirs) {
		return false, err
	}
	at := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())
	if own, err := n.owner.hasLinks(s, at); err != nil || !own {
		return false, err
	}
	return true, pinAt(path, at)
}

// hasLinks says whether a namespace has the sandbox's end of one of its links.
func (o owner) hasLinks(s Sandbox, netns string) (found bool, err error) {
	err = withLinks(func(c *netlink.Handle) error {
		wires, err := o.wiresOf(c, s)
		if err != nil {
			return err
		}
		return inside(netns, func() error {
			ends, err := innerEnds(wires)
			found = len(ends) > 0
			return err
		})
	})
	if errors.Is(err, unix.ENODEV) { // of a bridge: then there are no links either
		return false, nil
	}
	return found, err
}
