// Package rtnetlink makes, changes and removes links, addresses and routes of a
// network namespace, and lists them: those kinds that package network uses, and
// of what the kernel says about them, what it looks at.
//
// Errors are those of package netlink: errors.Is finds the kernel's number, such
// as unix.ENODEV where there is no such link.
package rtnetlink

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/netlink"
)

// Conn is a connection to one network namespace. It is for one goroutine at a
// time.
type Conn struct{ *netlink.Conn }

// Open connects to the network namespace of the calling thread.
func Open() (*Conn, error) {
	c, err := netlink.Open(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open links and routes: %w", err)
	}
	return &Conn{c}, nil
}
