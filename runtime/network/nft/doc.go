// Package nft writes and reads tables of nf_tables: those kinds of sets, chains
// and expressions that package network uses, and what it looks at in the tables
// of others. What is written is a [Batch], of which the kernel does all or
// nothing.
//
// Errors are those of package netlink: errors.Is finds the kernel's number.
package nft

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/netlink"
)

// Conn is a connection to the tables of one network namespace. It is for one
// goroutine at a time.
type Conn struct{ *netlink.Conn }

// Open connects to the network namespace of the calling thread.
func Open() (*Conn, error) {
	c, err := netlink.Open(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open nf_tables: %w", err)
	}
	return &Conn{c}, nil
}

// message is about something of a family; kind is one of NFT_MSG.
func message(kind uint16, f Family) *netlink.Message {
	return &netlink.Message{
		Type:   unix.NFNL_SUBSYS_NFTABLES<<8 | kind,
		Header: []byte{byte(f), unix.NFNETLINK_V0, 0, 0}, // struct nfgenmsg
	}
}

const messageHeader = 4
