package nft

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/netlink"
)

// Watcher hears of changes to tables of a network namespace.
type Watcher struct{ conn *netlink.Conn }

// Watch begins to listen in the network namespace of the calling thread.
func Watch() (*Watcher, error) {
	conn, err := netlink.Open(unix.NETLINK_NETFILTER, 1<<(unix.NFNLGRP_NFTABLES-1))
	if err != nil {
		return nil, fmt.Errorf("cannot watch nf_tables: %w", err)
	}
	return &Watcher{conn}, nil
}

// Close ends the listening; Receive then fails with os.ErrClosed.
func (w *Watcher) Close() error { return w.conn.Close() }

// Receive waits for changes and returns the tables they were made to, in
// order; maybe none. It fails with unix.ENOBUFS where there were more at once
// than the kernel kept.
func (w *Watcher) Receive() ([]Table, error) {
	var changed []Table
	err := w.conn.Receive(func(kind uint16, data []byte) {
		if kind>>8 != unix.NFNL_SUBSYS_NFTABLES || kind&0xff == unix.NFT_MSG_NEWGEN {
			return
		}
		if t, err := readTable(data); err == nil && t.Name != "" {
			changed = append(changed, t)
		}
	})
	return changed, err
}
