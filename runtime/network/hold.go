package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	nl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// aliveSuffix names an empty table with a NAT chain that exists while an agent watches. While
// somebody flushes the ruleset, and until our rules are back, it keeps the translations of
// running connections; otherwise the kernel would take their packets for its own and end
// them. The table belongs to the agent's socket: no one else can flush it, and it goes with
// the agent. This needs Linux 5.12; before, connections end.
const aliveSuffix = "_alive"

// holder is the connection that owns these tables.
type holder struct {
	*nftables.Conn
	raw  *nl.Conn
	held map[nftables.TableFamily]bool // tables that exist
}

// own adds a table owned by the connection. The library does not write table flags.
func (h *holder) own(t tableKey) error {
	const owned = 2 // NFT_TABLE_F_OWNER
	attributes, err := nl.MarshalAttributes([]nl.Attribute{
		{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(t.name), 0)},
		{Type: unix.NFTA_TABLE_FLAGS, Data: binary.BigEndian.AppendUint32(nil, owned)},
	})
	if err != nil {
		return err
	}
	border := func(kind nl.HeaderType) nl.Message {
		return nl.Message{
			Header: nl.Header{Type: kind, Flags: nl.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}
	}
	_, err = h.raw.SendMessages([]nl.Message{
		border(unix.NFNL_MSG_BATCH_BEGIN),
		nftMessage(unix.NFT_MSG_NEWTABLE, t.family, nl.Create|nl.Acknowledge, attributes),
		border(unix.NFNL_MSG_BATCH_END),
	})
	if err == nil {
		_, err = h.raw.Receive()
	}
	return err
}

// hold adds or removes the table beside that of the rules, while there is a holder.
func (n *Networks) hold(rules tableKey, wanted bool) {
	h := n.holder
	if h == nil || h.held[rules.family] == wanted {
		return
	}
	h.held[rules.family] = wanted
	t := tableKey{rules.family, rules.name + aliveSuffix}
	err := h.raw.SetDeadline(time.Now().Add(patience))
	if wanted {
		err = errors.Join(err, h.own(t))
		policy := nftables.ChainPolicyAccept
		h.AddChain(&nftables.Chain{
			Table: t.table(), Name: "postrouting", Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource, Policy: &policy,
		})
	} else {
		h.DelTable(t.table())
	}
	if err = errors.Join(err, commit(h.Conn)); err != nil {
		n.logger.Debug("flushing the ruleset ends connections to published ports", "error", err)
	}
}

// startHolding prepares the tables, which the next syncRules makes. stop must be called.
func (n *Networks) startHolding() (stop func() error, err error) {
	h := &holder{held: make(map[nftables.TableFamily]bool)}
	h.Conn, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(bounded, func(c *nl.Conn) error {
		h.raw = c
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("cannot open nf_tables: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holder != nil {
		return nil, errors.Join(fmt.Errorf("cannot watch the network twice: %w", unix.EBUSY), h.CloseLasting())
	}
	n.holder = h
	return func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.holder = nil
		return h.CloseLasting()
	}, nil
}
