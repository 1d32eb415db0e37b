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
	// patience limits one answer of the kernel, which normally comes at once.
	patience = 10 * time.Second

	maxAttempts = 10 // to read a list that keeps changing

	// maxListed limits what is kept of a list: containers can make theirs arbitrarily long.
	maxListed = 1 << 14

	skipStatistics = 1 << 3 // RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h
)

var errTooMany = fmt.Errorf("there are more than %d", maxListed)

// steady lists again if the list changed while the kernel wrote it.
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

// gathered keeps the wanted objects; nil: all. It never holds a whole list.
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

func allLinks(wanted func(netlink.Link) bool) ([]netlink.Link, error) {
	return gathered("links", wanted, func(pass func(netlink.Link) bool) error {
		// Statistics are two thirds of what the kernel sends about a link.
		ask := append(vnl.NewIfInfomsg(unix.AF_UNSPEC).Serialize(), vnl.NewRtAttr(unix.IFLA_EXT_MASK, vnl.Uint32Attr(skipStatistics)).Serialize()...)
		return query(unix.NETLINK_ROUTE, unix.RTM_GETLINK, unix.NLM_F_DUMP, ask, func(m []byte) (bool, error) {
			link, err := netlink.LinkDeserialize(nil, bytes.Clone(m)) // the link refers to it
			return err == nil && pass(link), err
		})
	})
}

// addresses returns those of all links; of both families with netlink.FAMILY_ALL.
func addresses(c *netlink.Handle, family int) ([]netlink.Addr, error) {
	return steady("addresses", func() ([]netlink.Addr, error) {
		// They are counted first: the library lists all or none, and has no public decoder.
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

// allRoutes returns the wanted routes of a family in all tables.
func allRoutes(c *netlink.Handle, f *family, wanted func(netlink.Route) bool) ([]netlink.Route, error) {
	return gathered("routes", wanted, func(pass func(netlink.Route) bool) error {
		return c.RouteListFilteredIter(f.route, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE, pass)
	})
}

// query sends a request and passes each part of the answer to read while that wants more.
// It uses a connection of its own that only the kernel can send to, unlike a Handle's.
func query(protocol, kind, flags int, body []byte, read func(m []byte) (more bool, err error)) error {
	s, err := vnl.Subscribe(protocol) // no groups
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
