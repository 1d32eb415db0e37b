package network

import (
	"encoding/binary"
	"fmt"
	"math"

	nl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// subscribe listens to groups of the kernel in the network namespace of the
// calling thread, until it is closed. The subscriptions of the libraries start
// goroutines that nobody can wait for, and end when there was too much at once.
func subscribe(protocol int, groups ...int) (*nl.Conn, error) {
	config := &nl.Config{}
	for _, group := range groups {
		config.Groups |= 1 << (group - 1)
	}
	return nl.Dial(protocol, config)
}

// linkWatcher hears of changes to links, addresses, routes and forwarding.
type linkWatcher struct{ *nl.Conn }

func watchLinks() (*linkWatcher, error) {
	c, err := subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return nil, fmt.Errorf("cannot watch links and routes: %w", err)
	}
	return &linkWatcher{c}, nil
}

// change is what a watcher hears of.
type change struct {
	link       int    // index of the link concerned; 0: none in particular
	name       string // of the link, where it is the link that changed
	forwarding bool   // of all links was switched
}

// wait waits for changes and returns them; maybe none. It fails with
// unix.ENOBUFS where there were more at once than the kernel kept.
func (w *linkWatcher) wait() ([]change, error) {
	messages, err := w.Receive()
	var changes []change
	for _, m := range messages {
		if c, ok := readChange(uint16(m.Header.Type), m.Data); ok {
			changes = append(changes, c)
		}
	}
	return changes, err
}

// From linux/netconf.h.
const (
	netconfHeader     = 4 // struct netconfmsg, padded
	netconfLink       = 1 // NETCONFA_IFINDEX
	netconfForwarding = 2 // NETCONFA_FORWARDING
	allLinksIndex     = math.MaxUint32
)

// readChange reads what is told; what cannot be read is no change.
func readChange(kind uint16, data []byte) (c change, ok bool) {
	index := func(b []byte) uint32 {
		if len(b) < 4 {
			return 0
		}
		return binary.NativeEndian.Uint32(b)
	}
	var err error
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		err = eachAttribute(data, unix.SizeofIfInfomsg, func(kind uint16, value []byte) {
			c.link = int(index(data[4:]))
			if kind == unix.IFLA_IFNAME {
				c.name = unix.ByteSliceToString(value)
			}
		})
		ok = true
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if ok = len(data) >= unix.SizeofIfAddrmsg; ok {
			c.link = int(index(data[4:]))
		}
	case unix.RTM_DELROUTE:
		err = eachAttribute(data, unix.SizeofRtMsg, func(kind uint16, value []byte) {
			if kind == unix.RTA_OIF {
				c.link = int(index(value))
			}
		})
		ok = c.link != 0
	case unix.RTM_NEWNETCONF:
		all := false
		err = eachAttribute(data, netconfHeader, func(kind uint16, value []byte) {
			switch kind {
			case netconfLink:
				all = index(value) == allLinksIndex
			case netconfForwarding:
				c.forwarding = true
			}
		})
		ok = all && c.forwarding
	}
	return c, ok && err == nil
}
