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

// Whoever breaks the same thing again and again has it repaired at growing
// intervals, until it held for so long.
const (
	repairAgainFirst = time.Second
	repairAgainLast  = time.Minute
	repairHeld       = 10 * time.Minute
)

// repairs is what Run remembers.
type repairs struct {
	n        *Networks
	lost     func()
	watch    func(dir string) error // the files in a directory
	attempts map[string]*attempt    // by what is repaired
	next     time.Time              // when the first one that has to wait is due
}

type attempt struct {
	last, next time.Time
	pause      time.Duration
}

// look finds damage and repairs it. It returns after how long it has to look again;
// 0: when there is news.
func (r *repairs) look() time.Duration {
	heard := r.n.heard.Load() // what is heard from now on asks for another look
	r.next = time.Time{}
	maps.DeleteFunc(r.attempts, func(_ string, a *attempt) bool { return time.Since(a.last) > repairHeld })
	lost, err := r.ensureAll()
	if err != nil && r.again("the network") {
		r.n.logger.Warn("cannot repair the network", "error", err)
	}
	if lost && r.again("namespaces of sandboxes") {
		r.n.logger.Warn("sandbox namespaces are no longer pinned, checking their services")
		r.lost()
	}
	if r.next.IsZero() {
		r.n.good.Store(heard)
		return 0
	}
	return max(time.Millisecond, time.Until(r.next))
}

// ensureAll goes through everything that was made since the start, rules first. lost
// says that namespaces are not pinned any more.
func (r *repairs) ensureAll() (lost bool, err error) {
	n := r.n
	n.mu.Lock()
	defer n.mu.Unlock()
	err = surveyed(func(at *survey) (err error) {
		if len(n.synced) > 0 {
			err = n.syncRules(at, func(f *family) bool { return r.due(f.forwarding) })
		}
		pinned, gone, failed := r.ensureMounted()
		lost, err = gone, errors.Join(err, failed)
		if failed := at.list(); failed != nil {
			return errors.Join(err, failed)
		}
		thing := func(what string, ensure func(at *survey) error) {
			r.repair(what, at.damage(ensure), func() error { return ensure(at) })
		}
		for _, w := range n.made {
			thing("network "+w.Name, func(at *survey) error { return n.owner.ensureNetwork(at, w) })
		}
		for _, s := range pinned {
			thing("links of sandbox "+s.file(), func(at *survey) error { return n.owner.ensureLinks(at, s, n.pin(s)) })
		}
		return err
	})
	return lost, err
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
		r.wait(a)
		return false
	}
	a.last, a.next, a.pause = now, now.Add(a.pause), min(2*a.pause, repairAgainLast)
	return true
}

// again is due for what is to be looked at again in any case.
func (r *repairs) again(what string) bool {
	due := r.due(what)
	r.wait(r.attempts[what])
	return due
}

func (r *repairs) wait(a *attempt) {
	if r.next.IsZero() || a.next.Before(r.next) {
		r.next = a.next
	}
}

// repair repairs one thing, if it is damaged and its time has come.
func (r *repairs) repair(what, damage string, ensure func() error) {
	if damage == "" || !r.due(what) {
		return
	}
	if err := ensure(); err != nil {
		r.n.logger.Warn("cannot repair "+what, "damage", damage, "error", err)
		r.wait(r.attempts[what])
		return
	}
	r.n.logger.Warn("repaired "+what, "damage", damage)
}

// ensureMounted goes through the pins and files of all sandboxes, and returns those
// whose namespace is pinned. lost says that others are not any more.
func (r *repairs) ensureMounted() (pinned []Sandbox, lost bool, err error) {
	n := r.n
	for _, s := range n.sandboxes() {
		if !s.Host {
			if ok, err := isPin(n.pin(s)); err != nil || !ok {
				lost = true
				continue
			}
			pinned = append(pinned, s)
		}
		files := n.filesOf(s.file())
		if failed := r.watch(files.dir); failed != nil && !errors.Is(failed, os.ErrNotExist) { // before they are looked at
			err = errors.Join(err, fmt.Errorf("cannot watch files of sandbox %s: %w", s.file(), failed))
		}
		r.repair("files of sandbox "+s.file(), n.damagedFiles(s), func() error {
			if err := n.prepareFiles(s.file()); err != nil {
				return err
			}
			files.begin()
			return r.watch(files.dir)
		})
	}
	return pinned, lost, err
}

// sandboxes are those that were made since the start.
func (n *Networks) sandboxes() []Sandbox {
	n.filesMu.Lock()
	defer n.filesMu.Unlock()
	var all []Sandbox
	for _, f := range n.files {
		if f.sandbox != nil {
			all = append(all, *f.sandbox)
		}
	}
	return all
}

// isMade reports whether the sandbox was made exactly so.
func (n *Networks) isMade(s Sandbox) bool {
	n.filesMu.Lock()
	defer n.filesMu.Unlock()
	f := n.files[s.file()]
	return f != nil && f.sandbox != nil && reflect.DeepEqual(*f.sandbox, s)
}

// InOrder reports whether EnsureNetwork, EnsureSandbox and SyncPorts have already
// made all of this, and Run has heard of nothing since it last found everything in
// order. Where the host has no end of a sandbox's link, as with macvlan, no damage is
// seen: such a sandbox is never in order.
func (n *Networks) InOrder(networks []Network, sandboxes []Sandbox, ports []Port) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.good.Load() != n.heard.Load() {
		return false
	}
	for _, w := range networks {
		if n.made[w.Bridge] != w || !w.isBridge() || !slices.Contains(n.networks, w) {
			return false
		}
	}
	for _, s := range sandboxes {
		if !n.isMade(s) || slices.ContainsFunc(s.Attached, func(a Attachment) bool { return !a.Network.isBridge() }) {
			return false
		}
	}
	return !slices.ContainsFunc(ports, func(p Port) bool { return !slices.Contains(n.ports, p) })
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
			return nil // without the bridge there are no links either
		}
		if err != nil {
			return err
		}
		return inside(netns, func() error { // it has the sandbox's end of a link
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
