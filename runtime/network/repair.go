package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// What keeps breaking is repaired at growing intervals, until it holds for repairHeld.
const (
	repairAgainFirst = time.Second
	repairAgainLast  = time.Minute
	repairHeld       = 10 * time.Minute
)

// repairs is the memory of Run.
type repairs struct {
	n        *Networks
	lost     func()
	watch    func(dir string) error // the files in a directory
	attempts map[string]attempt     // by what is repaired
	pending  bool                   // something still needs repair
	took     time.Duration          // by the last look, without waiting for locks
}

type attempt struct {
	pause time.Duration // before the next one
	next  time.Time
}

// look finds damage and repairs it. It returns the time until the next look; 0: wait for news.
func (r *repairs) look() time.Duration {
	heard := r.n.heard.Load() // what is heard from now on needs another look
	r.pending = false
	maps.DeleteFunc(r.attempts, func(_ string, a attempt) bool { return time.Since(a.next) > repairHeld })
	lost, err := r.ensureAll()
	if err != nil && r.due("the network") {
		r.n.logger.Warn("cannot repair the network", "error", err)
	}
	if lost && r.due("namespaces of sandboxes") {
		r.n.logger.Warn("sandbox namespaces are no longer pinned, checking their services")
		r.lost()
	}
	if err == nil && !lost && !r.pending {
		r.n.good.Store(heard)
		return 0
	}
	next := repairAgainLast
	for _, a := range r.attempts {
		if until := time.Until(a.next); until > 0 {
			next = min(next, until)
		}
	}
	return next
}

// ensureAll checks all made since the start, rules first; lost: unpinned namespaces.
func (r *repairs) ensureAll() (lost bool, err error) {
	n := r.n
	n.mu.Lock()
	defer n.mu.Unlock()
	begun := time.Now()
	defer func() { r.took = time.Since(begun) }()
	err = surveyed(func(at *survey) (err error) {
		if n.synced != nil {
			err = n.syncRules(at, func(f *family) bool { return r.due(f.forwarding) })
		}
		if failed := at.list(); failed != nil {
			return errors.Join(err, failed)
		}
		var sandboxes []Sandbox
		for name, s := range n.sandboxes() {
			if !n.isPinned(s) {
				lost = true
				continue
			}
			sandboxes = append(sandboxes, s)
			// Watch its files before looking at them.
			if failed := r.watch(n.filesOf(name).dir); failed != nil && !errors.Is(failed, os.ErrNotExist) {
				err = errors.Join(err, fmt.Errorf("cannot watch files of sandbox %s: %w", name, failed))
			}
		}
		for _, p := range n.parts(slices.Collect(maps.Values(n.made)), sandboxes) {
			r.ensure(at, p)
		}
		for _, s := range sandboxes {
			n.filesOf(s.file()).begin()
		}
		return err
	})
	return lost, err
}

// due reports whether it is time for a repair; if not, it notes that something is pending.
func (r *repairs) due(what string) bool {
	a, now := r.attempts[what], time.Now()
	if now.Before(a.next) {
		r.pending = true
		return false
	}
	a.pause = min(max(2*a.pause, repairAgainFirst), repairAgainLast)
	a.next = now.Add(a.pause)
	r.attempts[what] = a
	return true
}

func (r *repairs) ensure(at *survey, p part) {
	damage := at.damage(p.ensure)
	if damage == "" || !r.due(p.what) {
		return
	}
	if err := p.ensure(at); err != nil {
		r.pending = true
		r.n.logger.Warn("cannot repair "+p.what, "damage", damage, "error", err)
		return
	}
	r.n.logger.Warn("repaired "+p.what, "damage", damage)
}

// sandboxes returns those made since the start, by the names of their files.
func (n *Networks) sandboxes() map[string]Sandbox {
	n.filesMu.Lock()
	defer n.filesMu.Unlock()
	all := make(map[string]Sandbox)
	for name, f := range n.files {
		if f.sandbox != nil {
			all[name] = *f.sandbox
		}
	}
	return all
}

// part is one thing that Ensure makes. If the survey only looks, the error is the damage.
type part struct {
	what   string
	ensure func(at *survey) error
}

// parts returns the networks first: the sandboxes need them.
func (n *Networks) parts(networks []Network, sandboxes []Sandbox) []part {
	all := make([]part, 0, len(networks)+len(sandboxes))
	for _, w := range networks {
		all = append(all, part{"network " + w.Name, func(at *survey) error { return n.ensureNetwork(at, w) }})
	}
	for _, s := range sandboxes {
		all = append(all, part{"sandbox of " + s.String(), func(at *survey) error { return n.ensureSandbox(at, s) }})
	}
	return all
}

// Ensure makes or repairs networks and sandboxes; if one fails, it goes on with the others.
// [Networks.SyncPorts] and [Networks.BeginHosts] add rules and the names of other replicas;
// they must run before a container starts.
func (n *Networks) Ensure(ctx context.Context, networks []Network, sandboxes []Sandbox) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cannot set up networks: %w", err)
	}
	return surveyed(func(at *survey) (all error) {
		for _, p := range n.parts(networks, sandboxes) {
			if err := p.ensure(at); err != nil {
				all = errors.Join(all, fmt.Errorf("cannot set up %s: %w", p.what, err))
			}
		}
		return all
	})
}

// InOrder reports whether Ensure and SyncPorts have made all of this and it is intact. It
// looks again if Run has heard of something since it last found everything in order, and
// replaces rules that differ. Without a link's end on the host, as with macvlan, no damage
// is visible, so such a sandbox is never in order.
func (n *Networks) InOrder(networks []Network, sandboxes []Sandbox, ports []Port) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range networks {
		if n.made[w.Bridge] != w || !w.isBridge() || !slices.Contains(n.networks, w) {
			return false
		}
	}
	made, quiet := n.sandboxes(), n.good.Load() == n.heard.Load()
	for _, s := range sandboxes {
		if quiet && !n.Has(s) || !reflect.DeepEqual(made[s.file()], s) || slices.ContainsFunc(s.Attached, func(a Attachment) bool { return !a.Network.isBridge() }) {
			return false
		}
	}
	if slices.ContainsFunc(ports, func(p Port) bool { return !slices.Contains(n.ports, p) }) {
		return false
	}
	return quiet || surveyed(func(at *survey) (err error) {
		if n.synced != nil {
			err = n.syncRules(at, everyFamily)
		}
		at.looking = true
		for _, p := range n.parts(networks, sandboxes) {
			if err == nil {
				err = p.ensure(at)
			}
		}
		return err
	}) == nil
}

// Has reports whether the files of a sandbox exist and its namespace, if any, is pinned.
func (n *Networks) Has(s Sandbox) bool {
	return n.isPinned(s) && n.newFiles(s.file()).ensure(&survey{looking: true}, n.owner) == nil
}

func (n *Networks) isPinned(s Sandbox) bool {
	pinned, err := isPin(n.pin(s))
	return s.Host || pinned && err == nil
}

// Adopt pins a sandbox's namespace again by way of a process in it, and reports whether it is
// pinned. The namespace must provably be the sandbox's.
func (n *Networks) Adopt(ctx context.Context, s Sandbox, pid int) (bool, error) {
	if s.Host || pid <= 0 || ctx.Err() != nil {
		return s.Host, ctx.Err()
	}
	path := n.pin(s)
	if pinned, err := isPin(path); pinned || err != nil {
		return pinned, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	adopted, err := n.adopt(s, path, pid)
	if err != nil {
		return false, fmt.Errorf("cannot pin the namespace of %s again: %w", s, err)
	}
	if adopted {
		n.logger.Warn("repaired the pin of a network namespace", "sandbox", s.file())
	}
	return adopted, nil
}

func (n *Networks) adopt(s Sandbox, path string, pid int) (own bool, err error) {
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
	netns := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())
	err = surveyed(func(at *survey) error {
		wires, err := n.owner.wiresOf(at, s)
		if errors.Is(err, unix.ENODEV) {
			return nil // no bridge, so no links either
		}
		if err != nil {
			return err
		}
		return inside(netns, func() error { // proof: it has the sandbox's end of a link
			ends, err := innerEnds(wires)
			own = len(ends) > 0
			return err
		})
	})
	if err != nil || !own {
		return false, err
	}
	return true, pinAt(path, netns)
}
