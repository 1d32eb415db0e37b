package rtnetlink

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/netlink"
)

// Watcher hears of changes to links, addresses, routes and forwarding in a
// network namespace.
type Watcher struct{ conn *netlink.Conn }

// Change is what a watcher hears of.
type Change struct {
	Link       int    // index of the link concerned; 0: none in particular
	Name       string // of the link, where it is the link that changed
	Forwarding bool   // of all links was switched
}

// Watch begins to listen in the network namespace of the calling thread.
func Watch() (*Watcher, error) {
	groups := uint32(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE)
	for _, group := range []int{unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF} {
		groups |= 1 << (group - 1)
	}
	conn, err := netlink.Open(unix.NETLINK_ROUTE, groups)
	if err != nil {
		return nil, fmt.Errorf("cannot watch links and routes: %w", err)
	}
	return &Watcher{conn}, nil
}

// Close ends the listening; Receive then fails with os.ErrClosed.
func (w *Watcher) Close() error { return w.conn.Close() }

// Receive waits for changes and returns them; maybe none. It fails with
// unix.ENOBUFS where there were more at once than the kernel kept.
func (w *Watcher) Receive() ([]Change, error) {
	var changes []Change
	err := w.conn.Receive(func(kind uint16, data []byte) {
		if c, ok := readChange(kind, data); ok {
			changes = append(changes, c)
		}
	})
	return changes, err
}

// From linux/netconf.h.
const (
	netconfLink       = 1 // NETCONFA_IFINDEX
	netconfForwarding = 2 // NETCONFA_FORWARDING
	allLinks          = ^uint32(0)
)

// readChange reads what is told; what cannot be read is no change.
func readChange(kind uint16, data []byte) (c Change, ok bool) {
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		link, _, err := readLink(data)
		return Change{Link: link.Index, Name: link.Name}, err == nil
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(data) < unix.SizeofIfAddrmsg {
			return Change{}, false
		}
		return Change{Link: int(binary.NativeEndian.Uint32(data[4:]))}, true
	case unix.RTM_DELROUTE:
		route, _, err := readRoute(data)
		return Change{Link: route.Link}, err == nil && route.Link != 0
	case unix.RTM_NEWNETCONF:
		const header = 4 // struct netconfmsg, padded
		if len(data) < header {
			return Change{}, false
		}
		err := netlink.Value(data[header:]).Each(func(kind uint16, v netlink.Value) error {
			switch kind {
			case netconfLink:
				ok = v.Uint32() == allLinks
			case netconfForwarding:
				c.Forwarding = true
			}
			return nil
		})
		return c, ok && err == nil && c.Forwarding
	}
	return Change{}, false
}
