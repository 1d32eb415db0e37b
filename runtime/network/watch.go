package network

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/nftables"
	nl "github.com/mdlayher/netlink"
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
// ctx ends, and never for what this package does itself.
//
// changed is called from this goroutine; it may call SyncPorts. One may watch at
// a time.
func (n *Networks) Watch(ctx context.Context, changed func()) (err error) {
	stop, err := n.startHolding()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	watcher, err := subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return fmt.Errorf("cannot watch nf_tables: %w", err)
	}
	var reader sync.WaitGroup
	defer reader.Wait()
	defer watcher.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := make(chan event)
	failed := make(chan error, 1)
	reader.Go(func() { failed <- receive(ctx, watcher, events) })
	n.watched.rules.Store(n.rulesInOrder()) // what happened before is not told
	defer n.watched.rules.Store(false)

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
			n.watched.rules.Store(false)
			changed()
		}
		if look && !n.rulesInOrder() {
			n.watched.rules.Store(false)
			changed()
		}
	}
}

// event says which tables a change was made to.
type event struct{ ours, foreign bool }

// receive passes on what happens to the tables, until the connection is closed.
func receive(ctx context.Context, watcher *nl.Conn, events chan<- event) error {
	for {
		messages, err := watcher.Receive()
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
			if t, ok := changedTable(m); ok {
				ours := isOurTable(t)
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

// changedTable reads which table a message is about. Its name is the first
// attribute of everything that belongs to a table: NFTA_TABLE_NAME,
// NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_TABLE and NFTA_SET_ELEM_LIST_TABLE
// are the same number. What cannot be read is no change.
func changedTable(m nl.Message) (t tableKey, ok bool) {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || m.Header.Type&0xff == unix.NFT_MSG_NEWGEN {
		return t, false
	}
	err := eachAttribute(m.Data, nftHeader, func(kind uint16, value []byte) {
		if kind == unix.NFTA_TABLE_NAME {
			t = tableKey{nftables.TableFamily(m.Data[0]), unix.ByteSliceToString(value)}
		}
	})
	return t, err == nil && t.name != ""
}

// rulesInOrder says whether the tables are as SyncPorts left them. Before it ran,
// and where they cannot be read, there is nothing to say.
func (n *Networks) rulesInOrder() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	conn := newRules()
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
		if r.empty() != !exists || exists && (!r.hasRules(conn) || (r.guarding == unguarded) != (n.guardFor(f, host) == unguarded)) {
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
