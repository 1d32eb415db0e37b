package network

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/contain"
)

const (
	// patience is how long an answer of the kernel may take. It answers while it is
	// asked, so this is only for what should not be.
	patience = 10 * time.Second

	maxAttempts = 10 // at a list that changes meanwhile

	// maxListed is how many objects of a list are kept. A container that may change
	// its network can make the lists of its namespace as long as it likes.
	maxListed = 1 << 14

	skipStatistics = 1 << 3 // RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h
)

var errTooMany = fmt.Errorf("there are more than %d", maxListed)

// steady lists again where the list changed while the kernel wrote it.
func steady[T any](what string, list func() (T, error)) (all T, err error) {
	for range maxAttempts {
		all, err = list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return all, fmt.Errorf("cannot list %s: %w", what, err)
	}
	return all, nil
}

// gathered keeps what is wanted of the objects that each passes on; nil: all. They
// are looked at one by one, so that a long list does not fill the memory.
func gathered[T any](what string, wanted func(T) bool, each func(pass func(T) (more bool)) error) ([]T, error) {
	return steady(what, func() ([]T, error) {
		var all []T
		var full error
		err := each(func(item T) bool {
			switch {
			case wanted != nil && !wanted(item):
			case len(all) == maxListed:
				full = errTooMany
			default:
				all = append(all, item)
			}
			return full == nil
		})
		return all, cmp.Or(full, err)
	})
}

// allLinks are those that are wanted; nil: all.
func allLinks(wanted func(netlink.Link) bool) ([]netlink.Link, error) {
	return gathered("links", wanted, func(pass func(netlink.Link) bool) error {
		// Statistics are two thirds of what the kernel tells of a link.
		ask := append(vnl.NewIfInfomsg(unix.AF_UNSPEC).Serialize(), vnl.NewRtAttr(unix.IFLA_EXT_MASK, vnl.Uint32Attr(skipStatistics)).Serialize()...)
		return query(unix.NETLINK_ROUTE, unix.RTM_GETLINK, unix.NLM_F_DUMP, ask, func(m []byte) (bool, error) {
			link, err := netlink.LinkDeserialize(nil, bytes.Clone(m)) // the link refers to it
			return err == nil && pass(link), err
		})
	})
}

// addresses are those of all links; of both families with netlink.FAMILY_ALL.
func addresses(c *netlink.Handle, family int) ([]netlink.Addr, error) {
	return steady("addresses", func() ([]netlink.Addr, error) {
		// They are counted first: the library lists them all at once or not at all,
		// and has no public decoder for them.
		n, header := 0, vnl.NewIfAddrmsg(family).Serialize()
		err := query(unix.NETLINK_ROUTE, unix.RTM_GETADDR, unix.NLM_F_DUMP, header, func([]byte) (bool, error) {
			n++
			return n <= maxListed, nil
		})
		switch {
		case n > maxListed:
			return nil, errTooMany
		case err != nil:
			return nil, err
		}
		return c.AddrList(nil, family)
	})
}

// allRoutes are those of a family that are wanted, of every table.
func allRoutes(c *netlink.Handle, f *family, wanted func(netlink.Route) bool) ([]netlink.Route, error) {
	return gathered("routes", wanted, func(pass func(netlink.Route) bool) error {
		return c.RouteListFilteredIter(f.route, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE, pass)
	})
}

// query sends a request and passes each part of the answer to read, for as long as
// that wants more. It has a connection of its own, which listens to the kernel
// alone: that of a Handle cannot be told to.
func query(protocol, kind, flags int, body []byte, read func(m []byte) (more bool, err error)) error {
	s, err := vnl.Subscribe(protocol) // to no group
	if err != nil {
		return fmt.Errorf("cannot open netlink: %w", err)
	}
	defer s.Close()
	wait := unix.NsecToTimeval(patience.Nanoseconds())
	if err := errors.Join(unix.Connect(s.GetFd(), &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		s.SetSendTimeout(&wait), s.SetReceiveTimeout(&wait)); err != nil {
		return fmt.Errorf("cannot open netlink: %w", err)
	}
	request := vnl.NewNetlinkRequest(kind, flags)
	request.Sockets = map[int]*vnl.SocketHandle{protocol: {Socket: s}}
	request.AddRawData(body)
	return contain.Call(func() error {
		var unread error
		err := request.ExecuteIter(protocol, 0, func(m []byte) (more bool) {
			more, unread = read(m)
			return more && unread == nil
		})
		return cmp.Or(unread, err)
	})
}
