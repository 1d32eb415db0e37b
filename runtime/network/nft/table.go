package nft

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/netlink"
)

// Family says which packets come by a table.
type Family byte

// The families that are used.
const (
	Inet Family = unix.NFPROTO_INET // IPv4 and IPv6
	IPv4 Family = unix.NFPROTO_IPV4
	IPv6 Family = unix.NFPROTO_IPV6
)

// String is what nft calls the family.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "ip"
	case IPv6:
		return "ip6"
	case Inet:
		return "inet"
	}
	return fmt.Sprintf("family %d", byte(f))
}

// Table is known by its family and its name.
type Table struct {
	Family Family
	Name   string
}

// Chain is known by its table and its name.
type Chain struct {
	Table Table
	Name  string
	Base  *Base // nil: others lead to it
}

// Base is where packets get into a chain.
type Base struct {
	Type     string // ChainFilter, ...
	Hook     uint32 // unix.NF_INET_PRE_ROUTING, ...
	Priority int32  // the lowest is the first
	Policy   int32  // what becomes of a packet at the end: Accept or Drop
}

// Types of chains.
const (
	ChainFilter = "filter"
	ChainNAT    = "nat"
)

// The standard priorities, from linux/netfilter_ipv4.h.
const (
	PriorityRaw    = -300
	PriorityDNAT   = -100
	PriorityFilter = 0
	PrioritySNAT   = 100
)

// Tables are those of the family, or all with family 0.
func (c *Conn) Tables(f Family) ([]Table, error) {
	return netlink.List(c.Conn, message(unix.NFT_MSG_GETTABLE, f), func(data []byte) (Table, bool, error) {
		t, err := readTable(data)
		return t, true, err
	})
}

// readTable reads the table from what is told about it, or about something
// that belongs to it. Its name is the first attribute of everything that does:
// NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_TABLE and
// NFTA_SET_ELEM_LIST_TABLE are the same number.
func readTable(data []byte) (Table, error) {
	attributes, t, err := attributesOf(data)
	if err != nil {
		return t, err
	}
	err = attributes.Each(func(kind uint16, v netlink.Value) error {
		if kind == unix.NFTA_TABLE_NAME {
			t.Name = v.Text()
		}
		return nil
	})
	return t, err
}

// attributesOf are those behind the header, which knows the family.
func attributesOf(data []byte) (netlink.Value, Table, error) {
	if len(data) < messageHeader {
		return nil, Table{}, fmt.Errorf("cannot read message: %d bytes are too few", len(data))
	}
	return data[messageHeader:], Table{Family: Family(data[0])}, nil
}

// Chains are all, of every table.
func (c *Conn) Chains() ([]Chain, error) {
	return netlink.List(c.Conn, message(unix.NFT_MSG_GETCHAIN, 0), func(data []byte) (Chain, bool, error) {
		chain, err := readChain(data)
		return chain, true, err
	})
}

func readChain(data []byte) (Chain, error) {
	attributes, t, err := attributesOf(data)
	if err != nil {
		return Chain{}, err
	}
	c := Chain{Table: t}
	base := Base{Policy: Accept}
	var hook netlink.Value
	err = attributes.Each(func(kind uint16, v netlink.Value) error {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			c.Table.Name = v.Text()
		case unix.NFTA_CHAIN_NAME:
			c.Name = v.Text()
		case unix.NFTA_CHAIN_TYPE:
			base.Type = v.Text()
		case unix.NFTA_CHAIN_POLICY:
			base.Policy = int32(v.Big32())
		case unix.NFTA_CHAIN_HOOK:
			hook, c.Base = v, &base
		}
		return nil
	})
	if err != nil {
		return c, err
	}
	return c, hook.Each(func(kind uint16, v netlink.Value) error {
		switch kind {
		case unix.NFTA_HOOK_HOOKNUM:
			base.Hook = v.Big32()
		case unix.NFTA_HOOK_PRIORITY:
			base.Priority = int32(v.Big32())
		}
		return nil
	})
}
