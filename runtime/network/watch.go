package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	nl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// lookDelay is for how long Run waits after an event: what destroys something, or
	// makes it, is many changes. Rules wait for nothing, unless it looked just before:
	// without them is open what they keep closed.
	lookDelay = 300 * time.Millisecond
	// lookShare bounds what looking costs on a host where there is always news: at most
	// this part of the time.
	lookShare = 20
	// legacyInterval is how often the older iptables is looked for, which
	// tells nobody of its changes.
	legacyInterval = time.Minute
)

// Run repairs, until ctx ends, what others destroy of what was made since the start:
// bridges, their addresses and routes, the links of sandboxes, their files,
// forwarding, and rules, which also follow those of the host. It looks whenever the
// kernel tells of a change, whoever made it. Where the namespace of a sandbox is no
// longer pinned it calls lost, for that takes the process that is in there: see
// [Networks.Adopt]. One may run at a time.
func (n *Networks) Run(ctx context.Context, lost func()) (err error) {
	stop, err := n.startHolding()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	var readers sync.WaitGroup
	defer readers.Wait()
	defer n.heard.Add(1)          // of what happens from now on nobody hears
	failed := make(chan error, 4) // one of each watcher
	rules := make(chan struct{}, 1)
	var files fileWatcher
	for _, source := range []struct {
		open func() (watcher, error)
		news chan struct{}
	}{{files.open, n.news}, {watchMounts, n.news}, {watchLinks, n.news}, {watchRules, rules}} {
		w, err := source.open()
		if err != nil {
			return fmt.Errorf("cannot watch %s: %w", w.what, err)
		}
		defer w.Close() // ends the reader
		tell := func() { n.tell(source.news) }
		readers.Go(func() { failed <- fmt.Errorf("cannot watch %s: %w", w.what, w.hear(tell)) })
	}
	legacy := time.NewTicker(legacyInterval)
	defer legacy.Stop()

	r := repairs{n: n, lost: lost, watch: files.add, attempts: make(map[string]attempt)}
	due := time.NewTimer(0) // what happened before is not told
	defer due.Stop()
	waiting, pause, looked := true, lookDelay, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-legacy.C:
			n.tell(n.news)
		case <-n.news:
			if !waiting {
				due.Reset(pause)
			}
			waiting = true
		case <-rules:
			due.Reset(max(0, time.Until(looked.Add(pause))))
			waiting = true
		case <-due.C:
			begun := time.Now()
			again := r.look()
			looked, waiting = time.Now(), false
			pause = max(lookDelay, lookShare*looked.Sub(begun))
			if again > 0 {
				due.Reset(max(pause, again))
			}
		}
	}
}

// tell has Run look, whether or not it is looking now.
func (n *Networks) tell(news chan struct{}) {
	n.heard.Add(1)
	select {
	case news <- struct{}{}:
	default:
	}
}

// watcher is one way in which the kernel tells of changes.
type watcher struct {
	what string
	io.Closer
	hear func(tell func()) error // until it is closed
}

// watchMounts hears of changes to the mounts of this process.
func watchMounts() (w watcher, err error) {
	w.what = "mounts"
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return w, err
	}
	w.Closer = f
	w.hear = func(tell func()) error {
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		return raw.Read(func(uintptr) bool { // is called again with each change
			tell()
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
	w.hear = func(tell func()) error {
		for events := make([]byte, 4<<10); ; tell() {
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
// calling thread. The subscriptions of the libraries start goroutines that nobody can
// wait for, and end when there was too much at once.
func subscribe(what string, protocol int, groups ...int) (watcher, error) {
	config := &nl.Config{}
	for _, group := range groups {
		config.Groups |= 1 << (group - 1)
	}
	c, err := nl.Dial(protocol, config)
	return watcher{what, c, func(tell func()) error {
		for {
			if _, err := c.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) { // that was too much at once
				return err
			}
			tell()
		}
	}}, err
}

func watchRules() (watcher, error) {
	return subscribe("nf_tables", unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
}

// watchLinks also hears of addresses, routes and forwarding.
func watchLinks() (watcher, error) {
	return subscribe("links and routes", unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
}
