package network

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// calmTime has to pass without a change before the host's rules are looked
	// at: a reload is many changes. What takes our own rules away waits for
	// nothing.
	calmTime = 50 * time.Millisecond
	// legacyInterval is how often the older iptables is looked for, which
	// tells nobody of its changes.
	legacyInterval = time.Minute
)

// Watch calls changed when somebody else removed or changed rules of ours, or
// changed the host's own: SyncPorts then has something to do. It does so until
// ctx ends, and never for what this package does itself. Clients that the
// host's firewall admitted to published ports have to be admitted anew after
// each of its changes.
//
// changed is called from this goroutine; it may call SyncPorts. One may watch at
// a time.
func (n *Networks) Watch(ctx context.Context, changed func()) (err error) {
	stop, err := n.startHolding()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	if err != nil {
		return fmt.Errorf("cannot watch nf_tables: %w", err)
	}
	var reader sync.WaitGroup
	defer reader.Wait()
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := make(chan event)
	failed := make(chan error, 1)
	reader.Go(func() { failed <- receive(ctx, conn, events) })

	legacy := time.NewTicker(legacyInterval)
	defer legacy.Stop()
	calm := time.NewTimer(calmTime)
	calm.Stop()
	defer calm.Stop()
	for {
		look := false
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case e := <-events:
			if e.foreign {
				calm.Reset(calmTime)
			}
			look = e.ours
		case <-legacy.C:
			look = true
		case <-calm.C:
			if err := n.admitAnew(); err != nil {
				n.logger.Warn("clients that the firewall admitted before stay so for a while", "error", err)
			}
			changed()
		}
		if look && !n.inOrder() {
			changed()
		}
	}
}

// event says which tables a change was made to.
type event struct{ ours, foreign bool }

// receive passes on what happens to the tables, until the connection is closed.
func receive(ctx context.Context, conn *netlink.Conn, events chan<- event) error {
	for {
		messages, err := conn.Receive()
		var e event
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			e = event{ours: true, foreign: true} // too much at once: anything
		case err != nil:
			return fmt.Errorf("cannot watch nf_tables: %w", err)
		}
		for _, m := range messages {
			if ours, ok := concerns(m); ok {
				e.ours, e.foreign = e.ours || ours, e.foreign || !ours
			}
		}
		if e == (event{}) {
			continue
		}
		select {
		case events <- e:
		case <-ctx.Done():
			return nil
		}
	}
}

// concerns says whether the message is about a table, and whether about ours.
// The name of its table is the first attribute of everything that belongs to
// one: NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_TABLE and
// NFTA_SET_ELEM_LIST_TABLE are the same number.
func concerns(m netlink.Message) (ours, ok bool) {
	const header = 4 // struct nfgenmsg
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || m.Header.Type&0xff == unix.NFT_MSG_NEWGEN || len(m.Data) < header {
		return false, false
	}
	attrs, err := netlink.NewAttributeDecoder(m.Data[header:])
	if err != nil {
		return false, false
	}
	for attrs.Next() {
		if attrs.Type() == unix.NFTA_TABLE_NAME {
			table := &nftables.Table{Name: attrs.String(), Family: nftables.TableFamily(m.Data[0])}
			return isOurTable(table), true
		}
	}
	return false, false
}

// admitAnew forgets whom the host's firewall admitted.
func (n *Networks) admitAnew() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	conn, err := openTables()
	if err != nil {
		return err
	}
	defer conn.CloseLasting()
	for _, f := range families() {
		if r, ok := n.synced[f.table]; ok && !r.empty() {
			err = errors.Join(err, r.forgetAdmitted(conn))
		}
	}
	return err
}

// inOrder says whether the tables are as SyncPorts left them. Before it ran,
// and where they cannot be read, there is nothing to say.
func (n *Networks) inOrder() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	conn, err := openTables()
	if err != nil {
		return true
	}
	defer conn.CloseLasting()
	host, err := readFirewall(conn)
	if err != nil {
		return true
	}
	for _, f := range families() {
		r, ok := n.synced[f.table]
		if !ok {
			continue
		}
		exists, err := r.exists(conn)
		if err != nil {
			return true
		}
		if r.empty() != !exists || exists && (!r.hasRules(conn) || r.guarding != n.guardFor(f, host)) {
			return false
		}
		if exists {
			if sets, err := r.differing(conn); err != nil || len(sets) > 0 {
				return false
			}
		}
	}
	return true
}
