package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	nl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// repairDelay is how long after a change damage is looked for: what destroys
	// something, or makes it, is many changes. What takes our rules away waits for
	// nothing, unless it comes again so soon.
	repairDelay = 200 * time.Millisecond
	// legacyInterval is how often the older iptables is looked for, which
	// tells nobody of its changes.
	legacyInterval = time.Minute
)

// The kinds of what may be out of order.
const (
	ofMounts   uint32 = 1 << iota // and of files
	ofLinks                       // with addresses, routes and forwarding
	ofRules                       // ours, or those of the host
	ofOurRules                    // besides ofRules
	underWay                      // somebody looks
	everything = ofMounts | ofLinks | ofRules
)

// Run repairs, until ctx ends, what others destroy of what was made since the start:
// bridges, their addresses and routes, the links of sandboxes, their files,
// forwarding, and rules, which also follow those of the host. It hears of it from the
// kernel. Where the namespace of a sandbox is no longer pinned it calls lost, for that
// takes the process that is in there: see [Networks.Adopt]. One may run at a time.
func (n *Networks) Run(ctx context.Context, lost func()) (err error) {
	stop, err := n.startHolding()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	changed := make(chan struct{}, 1)
	tell := func(kinds uint32) {
		n.stale.Or(kinds)
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	var readers sync.WaitGroup
	defer readers.Wait()
	defer n.stale.Or(everything)
	failed := make(chan error, 4) // one of each watcher
	var files fileWatcher
	for _, open := range []func() (watcher, error){files.open, watchMounts, n.watchLinks, watchRules} {
		w, err := open()
		if err != nil {
			return fmt.Errorf("cannot watch %s: %w", w.what, err)
		}
		defer w.Close() // ends the reader
		readers.Go(func() { failed <- fmt.Errorf("cannot watch %s: %w", w.what, w.hear(tell)) })
	}
	legacy := time.NewTicker(legacyInterval)
	defer legacy.Stop()

	r := repairs{n: n, lost: lost, watch: files.add, attempts: make(map[string]*attempt)}
	due := time.NewTimer(0) // what happened before is not told
	defer due.Stop()
	waiting, looked := true, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-legacy.C:
			tell(ofRules)
		case <-changed:
			if n.stale.Load()&ofOurRules != 0 {
				due.Reset(max(0, repairDelay-time.Since(looked)))
			} else if !waiting {
				due.Reset(repairDelay)
			}
			waiting = true
		case <-due.C:
			waiting = false
			kinds := n.stale.Swap(underWay) & everything
			good := r.pass(kinds)
			looked = time.Now()
			switch {
			case good:
				n.stale.CompareAndSwap(underWay, 0)
			case r.next.IsZero():
				n.stale.Or(kinds)
			default:
				n.stale.Or(everything)
				due.Reset(max(repairDelay, time.Until(r.next)))
			}
		}
	}
}

// watcher is one way in which the kernel tells of changes.
type watcher struct {
	what string
	io.Closer
	hear func(tell func(kinds uint32)) error // until it is closed
}

// watchMounts hears of changes to the mounts of this process.
func watchMounts() (w watcher, err error) {
	w.what = "mounts"
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return w, err
	}
	w.Closer = f
	w.hear = func(tell func(kinds uint32)) error {
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		return raw.Read(func(uintptr) bool { // is called again with each change
			tell(ofMounts)
			return false
		})
	}
	return w, nil
}

// fileWatcher hears of files that are removed from directories.
type fileWatcher struct{ fd int }

func (f *fileWatcher) open() (w watcher, err error) {
	w.what = "files"
	if f.fd, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err != nil {
		return w, err
	}
	file := os.NewFile(uintptr(f.fd), "inotify")
	w.Closer = file
	w.hear = func(tell func(kinds uint32)) error {
		for events := make([]byte, 4<<10); ; tell(ofMounts) {
			if _, err := file.Read(events); err != nil {
				return err
			}
		}
	}
	return w, nil
}

// add has the files of a directory watched, once however often it is called.
func (f *fileWatcher) add(dir string) error {
	const events = unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
	_, err := unix.InotifyAddWatch(f.fd, dir, events)
	return err
}

// subscribe listens to groups of the kernel in the network namespace of the
// calling thread; read says what a message tells of. The subscriptions of the
// libraries start goroutines that nobody can wait for, and end when there was too
// much at once.
func subscribe(what string, protocol int, all uint32, read func(m nl.Message) (kinds uint32), groups ...int) (watcher, error) {
	config := &nl.Config{}
	for _, group := range groups {
		config.Groups |= 1 << (group - 1)
	}
	c, err := nl.Dial(protocol, config)
	return watcher{what, c, func(tell func(kinds uint32)) error {
		for {
			messages, err := c.Receive()
			var kinds uint32
			switch {
			case errors.Is(err, unix.ENOBUFS): // too much at once: anything
				kinds = all
			case err != nil:
				return err
			}
			for _, m := range messages {
				kinds |= read(m)
			}
			if kinds != 0 {
				tell(kinds)
			}
		}
	}}, err
}

func watchRules() (watcher, error) {
	return subscribe("nf_tables", unix.NETLINK_NETFILTER, ofRules|ofOurRules, func(m nl.Message) uint32 {
		switch table, ok := changedTable(m); {
		case !ok:
			return 0
		case isOurTable(table):
			return ofRules | ofOurRules
		}
		return ofRules
	}, unix.NFNLGRP_NFTABLES)
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

// watchLinks hears of changes to what some margolite made, as far as that can be told
// without looking. Where it is routes of others that change, nobody looks.
func (n *Networks) watchLinks() (watcher, error) {
	return subscribe("links and routes", unix.NETLINK_ROUTE, ofLinks, func(m nl.Message) uint32 {
		var known []int
		if p := n.indexes.Load(); p != nil {
			known = *p
		}
		if concerns(uint16(m.Header.Type), m.Data, known) {
			return ofLinks
		}
		return 0
	}, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
}

// From linux/netconf.h.
const (
	netconfHeader     = 4 // struct netconfmsg, padded
	netconfLink       = 1 // NETCONFA_IFINDEX
	netconfForwarding = 2 // NETCONFA_FORWARDING
	allLinksIndex     = math.MaxUint32
)

// concerns says whether a message tells of one of these links or of one with a name of
// ours, or that forwarding was switched for all. One that cannot be read does not.
func concerns(kind uint16, data []byte, known []int) bool {
	header := 0
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		header = unix.SizeofIfInfomsg
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		header = unix.SizeofIfAddrmsg
	case unix.RTM_DELROUTE:
		header = unix.SizeofRtMsg
	case unix.RTM_NEWNETCONF:
		header = netconfHeader
	default:
		return false
	}
	attributes := make(map[uint16][]byte)
	if err := eachAttribute(data, header, func(kind uint16, value []byte) { attributes[kind] = value }); err != nil {
		return false
	}
	number := func(b []byte) (n uint32) {
		if len(b) >= 4 {
			n = binary.NativeEndian.Uint32(b)
		}
		return n
	}
	switch kind {
	case unix.RTM_DELROUTE:
		return slices.Contains(known, int(number(attributes[unix.RTA_OIF])))
	case unix.RTM_NEWNETCONF:
		_, forwarding := attributes[netconfForwarding]
		return forwarding && number(attributes[netconfLink]) == allLinksIndex
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if isOurs(unix.ByteSliceToString(attributes[unix.IFLA_IFNAME])) {
			return true
		}
	}
	return slices.Contains(known, int(number(data[4:])))
}
