package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// aliveTable is there while an agent watches, and does nothing: that there is
// a chain for translations keeps those of the connections that run going while
// somebody flushes the ruleset, and until our rules are back. Without it the
// kernel would take their packets for its own in that moment, and end them. The
// table belongs to the agent's socket: nobody else can flush it, and it goes
// with the agent. That takes Linux 5.12; before, connections end.
const aliveTable = "margolite_alive"

const ownedTable = 2 // NFT_TABLE_F_OWNER, which package nftables cannot say

// hold makes the table of a family be there or not, while there is a holder.
func (n *Networks) hold(f family, wanted bool) {
	if n.holder == nil || slices.Contains(n.held, f.table) == wanted {
		return
	}
	var err error
	if wanted {
		err = transact(n.holder, f.newAliveTable()...)
		n.held = append(n.held, f.table)
	} else {
		err = transact(n.holder, f.aliveMessage(unix.NFT_MSG_DELTABLE))
		n.held = slices.DeleteFunc(n.held, func(t nftables.TableFamily) bool { return t == f.table })
	}
	if err != nil {
		n.logger.Debug("connections to published ports end when the ruleset is flushed", "error", err)
	}
}

func (f family) newAliveTable() []netlink.Message {
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	hook, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_HOOK_HOOKNUM, Data: number(unix.NF_INET_POST_ROUTING)},
		{Type: unix.NFTA_HOOK_PRIORITY, Data: number(uint32(*nftables.ChainPriorityNATSource))},
	})
	if err != nil {
		return nil // they are too small for that
	}
	return []netlink.Message{
		f.aliveMessage(unix.NFT_MSG_NEWTABLE, netlink.Attribute{Type: unix.NFTA_TABLE_FLAGS, Data: number(ownedTable)}),
		f.aliveMessage(
			unix.NFT_MSG_NEWCHAIN,
			netlink.Attribute{Type: unix.NFTA_CHAIN_NAME, Data: []byte("postrouting\x00")},
			netlink.Attribute{Type: unix.NFTA_CHAIN_HOOK | unix.NLA_F_NESTED, Data: hook},
			netlink.Attribute{Type: unix.NFTA_CHAIN_TYPE, Data: []byte("nat\x00")},
		),
	}
}

// aliveMessage is about the table, whose name is the first attribute of all
// messages.
func (f family) aliveMessage(kind netlink.HeaderType, attrs ...netlink.Attribute) netlink.Message {
	name := netlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: []byte(aliveTable + "\x00")}
	data, _ := netlink.MarshalAttributes(append([]netlink.Attribute{name}, attrs...)) // they are small
	return netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Flags: netlink.Request | netlink.Acknowledge | netlink.Create},
		Data:   append([]byte{byte(f.table), unix.NFNETLINK_V0, 0, 0}, data...),
	}
}

// transact has the kernel do all of it or nothing.
func transact(conn *netlink.Conn, messages ...netlink.Message) error {
	bound := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}
	}
	batch := slices.Concat([]netlink.Message{bound(unix.NFNL_MSG_BATCH_BEGIN)}, messages, []netlink.Message{bound(unix.NFNL_MSG_BATCH_END)})
	if _, err := conn.SendMessages(batch); err != nil {
		return err
	}
	// A kernel that gives up on the whole does not answer each.
	if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	var all error
	for range messages {
		if _, err := conn.Receive(); err != nil {
			all = errors.Join(all, err)
			if !errors.As(err, new(*netlink.OpError)) {
				break
			}
		}
	}
	return all
}

// startHolding is for a watcher, which has to call the function it gets in the
// end.
func (n *Networks) startHolding() (stop func() error, err error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot open nf_tables: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holder != nil {
		return nil, errors.Join(fmt.Errorf("cannot watch nf_tables twice: %w", unix.EBUSY), conn.Close())
	}
	n.holder = conn
	for _, f := range families() {
		if r, ok := n.synced[f.table]; ok {
			n.hold(f, !r.empty())
		}
	}
	return func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.holder, n.held = nil, nil
		return conn.Close()
	}, nil
}
