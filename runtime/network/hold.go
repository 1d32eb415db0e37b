package network

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/nft"
)

// aliveSuffix makes the name of a table that is there while an agent watches, and does nothing: that there is
// a chain for translations keeps those of the connections that run going while
// somebody flushes the ruleset, and until our rules are back. Without it the
// kernel would take their packets for its own in that moment, and end them. The
// table belongs to the agent's socket: nobody else can flush it, and it goes
// with the agent. That takes Linux 5.12; before, connections end.
const aliveSuffix = "_alive"

// hold makes the table beside that of the rules be there or not, while there is a
// holder.
func (n *Networks) hold(rules nft.Table, wanted bool) {
	if n.holder == nil || slices.Contains(n.held, rules.Family) == wanted {
		return
	}
	var b nft.Batch
	table := nft.Table{Family: rules.Family, Name: rules.Name + aliveSuffix}
	if wanted {
		b.AddOwnedTable(table)
		b.AddChain(nft.Chain{
			Table: table, Name: "postrouting",
			Base: &nft.Base{Type: nft.ChainNAT, Hook: unix.NF_INET_POST_ROUTING, Priority: nft.PrioritySNAT, Policy: nft.Accept},
		})
		n.held = append(n.held, rules.Family)
	} else {
		b.RemoveTable(table)
		n.held = slices.DeleteFunc(n.held, func(t nft.Family) bool { return t == rules.Family })
	}
	if err := n.holder.Commit(&b); err != nil {
		n.logger.Debug("connections to published ports end when the ruleset is flushed", "error", err)
	}
}

// startHolding is for a watcher, which has to call the function it gets in the
// end.
func (n *Networks) startHolding() (stop func() error, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holder != nil {
		return nil, errors.Join(fmt.Errorf("cannot watch nf_tables twice: %w", unix.EBUSY), conn.Close())
	}
	n.holder = conn
	for _, f := range families() {
		if r, ok := n.synced[f.table]; ok {
			n.hold(r.table, !r.empty())
		}
	}
	return func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.holder, n.held = nil, nil
		return conn.Close()
	}, nil
}
