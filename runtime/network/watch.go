package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookDelay is how long Run waits after an event, as setting up or destroying something
	// takes many changes. A change of rules does not wait, unless Run has just looked: without
	// rules, what they keep closed is open.
	lookDelay = 300 * time.Millisecond
	// Under constant news, a look takes at most 1/lookShare of the time, as long as Run need
	// not wait longer than lookDelayMax for that.
	lookShare    = 20
	lookDelayMax = 5 * time.Second
	// legacyInterval is how often the older iptables, which sends no events, is checked.
	legacyInterval = time.Minute
)

// Run repairs, until ctx ends, what others destroy of what was made since the start: bridges,
// their addresses and routes, the links of sandboxes, their files, forwarding, and rules,
// which also follow the host's. It looks whenever the kernel reports a change. It calls
// lost if the namespace of a sandbox is no longer pinned: pinning takes a process in it, see
// [Networks.Adopt]. Only one Run may be active.
func (n *Networks) Run(ctx context.Context, lost func()) (err error) {
	stop, err := n.startHolding()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	var readers sync.WaitGroup
	defer readers.Wait()
	defer n.heard.Add(1)          // from now on changes go unnoticed
	failed := make(chan error, 4) // one for each source
	rules, mounts := make(chan struct{}, 1), make(chan struct{}, 1)
	var inotify int
	for _, source := range []struct {
		what string
		news chan struct{}
		open func() (fd int, err error)
	}{
		{"files", n.news, func() (_ int, err error) {
			inotify, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
			return inotify, err
		}},
		{"mounts", mounts, func() (int, error) {
			return unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		}},
		{"links and routes", n.news, func() (int, error) {
			return subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
				unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
		}},
		{"nf_tables", rules, func() (int, error) { return subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES) }},
	} {
		fd, err := source.open()
		if err != nil {
			return fmt.Errorf("cannot watch %s: %w", source.what, err)
		}
		file := os.NewFile(uintptr(fd), source.what)
		defer file.Close() // ends the reader
		tell := n.tell
		if source.news == mounts { // [Networks.InOrder] checks the relevant mounts itself
			tell = wake
		}
		readers.Go(func() {
			failed <- fmt.Errorf("cannot watch %s: %w", source.what, hear(file, func() { tell(source.news) }))
		})
	}
	watchFiles := func(dir string) error {
		_, err := unix.InotifyAddWatch(inotify, dir, unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW)
		return err
	}
	older, legacy := legacyRules(), time.NewTicker(legacyInterval)
	defer legacy.Stop()

	r := repairs{n: n, lost: lost, watch: watchFiles, attempts: make(map[string]attempt)}
	due, end := time.NewTimer(0), time.Now() // earlier changes were not reported
	defer due.Stop()
	lookBy := func(t time.Time) {
		if end.IsZero() || t.Before(end) {
			end = t
			due.Reset(time.Until(t))
		}
	}
	pause, looked := lookDelay, time.Time{}
	onlyMounts := false // no other news
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-legacy.C:
			if now := legacyRules(); now != older {
				older = now
				n.tell(n.news)
			}
		case <-mounts: // each start of a container causes many
			lookBy(time.Now().Add(pause))
		case <-n.news:
			onlyMounts = false
			lookBy(time.Now().Add(pause))
		case <-rules:
			onlyMounts = false
			lookBy(looked.Add(lookDelay))
		case <-due.C:
			end = time.Time{}
			if onlyMounts && n.pinned() {
				continue
			}
			again := r.look()
			looked, onlyMounts = time.Now(), again == 0
			pause = min(max(lookDelay, lookShare*r.took), lookDelayMax)
			if again > 0 {
				lookBy(looked.Add(max(lookDelay, again)))
			}
		}
	}
}

// tell has Run look, whether or not it is looking now.
func (n *Networks) tell(news chan struct{}) {
	n.heard.Add(1)
	wake(news)
}

func wake(news chan struct{}) {
	select {
	case news <- struct{}{}:
	default:
	}
}

// pinned reports whether the namespaces of all sandboxes are pinned.
func (n *Networks) pinned() bool {
	for _, s := range n.sandboxes() {
		if !n.isPinned(s) {
			return false
		}
	}
	return true
}

// hear calls tell for each change until the file is closed, and ignores what it says.
func hear(file *os.File, tell func()) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	buffer := make([]byte, 4<<10)
	return raw.Read(func(fd uintptr) (done bool) {
		for {
			size, err := unix.Read(int(fd), buffer)
			if size <= 0 && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOBUFS) { // ENOBUFS: too much at once
				break
			}
		}
		tell()
		return false
	})
}

// subscribe opens a socket for changes in the calling thread's network namespace.
func subscribe(protocol int, groups ...int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return 0, err
	}
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	for _, group := range groups {
		to.Groups |= 1 << (group - 1)
	}
	if err := unix.Bind(fd, to); err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}
