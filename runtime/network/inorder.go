package network

import (
	"errors"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink"
)

// watched says which parts of the network are watched, and were in order when
// their watcher last looked.
type watched struct {
	rules atomic.Bool // by Watch
	links atomic.Bool // by Repair
}

var errNotInOrder = errors.New("network is not in order")

// InOrder reports whether EnsureNetwork, EnsureSandbox and SyncPorts have already
// made all of this, and nothing is left for them to do. It is cheap: it reads only
// the links of the networks, and relies on Watch, Repair and RefreshFiles for everything
// else. While the first two do not run, or are about to repair something, it reports
// false.
func (n *Networks) InOrder(networks []Network, sandboxes []Sandbox, ports []Port) bool {
	if !n.watched.rules.Load() || !n.watched.links.Load() {
		return false
	}
	if !n.intended.include(networks, sandboxes) || !n.include(networks, ports) {
		return false
	}
	return withLinks(func(c *netlink.Handle) error {
		for _, w := range networks {
			bridge, err := mustFindLink(c, w.Bridge)
			if err != nil {
				return err
			}
			mtu, err := w.mtu(c)
			if err != nil {
				return err
			}
			if bridge.Attrs().MTU != mtu {
				return errNotInOrder
			}
		}
		return nil
	}) == nil
}

// include reports whether these were made, exactly as they are here. Where the
// host has no end of a sandbox's link, as with macvlan, Repair sees no damage to
// it: such a sandbox is never included.
func (i *intended) include(networks []Network, sandboxes []Sandbox) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, w := range networks {
		if made, ok := i.networks[w.Bridge]; !ok || made != w || !w.isBridge() {
			return false
		}
	}
	for _, s := range sandboxes {
		made, ok := i.sandboxes[s.file()]
		if !ok || !reflect.DeepEqual(made, s) ||
			slices.ContainsFunc(s.Attached, func(a Attachment) bool { return !a.Network.isBridge() }) {
			return false
		}
	}
	return true
}

// include reports whether the rules are for these networks and ports, besides others.
func (n *Networks) include(networks []Network, ports []Port) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for _, w := range networks {
		if !slices.Contains(n.networks, w) {
			return false
		}
	}
	for _, p := range ports {
		if !slices.Contains(n.ports, p) {
			return false
		}
	}
	return true
}
