package network

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// survey is the state of a network namespace, and the way to change it: the same functions set
// something up, find damage, and repair it.
type survey struct {
	c         *netlink.Handle
	links     map[string]netlink.Link
	listed    bool // the following are set
	addresses []netlink.Addr
	routes    []netlink.Route // of our bridges, in the main table
	uplink    int             // MTU of the way out; 0: none
	looking   bool            // name changes instead of making them
}

// damage names a change that a survey would make if it did not only look.
type damage string

func (d damage) Error() string { return string(d) }

// surveyed calls f with a survey of the thread's namespace.
func surveyed(f func(at *survey) error) error {
	return withLinks(func(c *netlink.Handle) error {
		links, err := allLinks(nil)
		if err != nil {
			return err
		}
		at := &survey{c: c, links: make(map[string]netlink.Link, len(links))}
		for _, link := range links {
			at.links[link.Attrs().Name] = link
		}
		return f(at)
	})
}

// list adds addresses and routes, which only networks need.
func (at *survey) list() (err error) {
	if at.listed {
		return nil
	}
	if at.addresses, err = addresses(at.c, netlink.FAMILY_ALL); err != nil {
		return err
	}
	ours := make(map[int]bool)
	for name, link := range at.links {
		_, by := readMark(link)
		ours[link.Attrs().Index] = by.known() || isOurs(name)
	}
	for _, f := range families() {
		routes, err := allRoutes(at.c, f, func(r netlink.Route) bool {
			return r.Table == unix.RT_TABLE_MAIN && ours[r.LinkIndex]
		})
		if err != nil {
			return err
		}
		at.routes = append(at.routes, routes...)
	}
	at.uplink, at.listed = at.uplinkMTU(), true
	return nil
}

// uplinkMTU is the MTU of the way out, which no packet of a container may exceed; 0: none.
func (at *survey) uplinkMTU() int {
	for _, f := range families() {
		ways, _ := at.c.RouteGet(f.faraway.AsSlice()) // none if it fails
		for _, link := range at.links {
			now := link.Attrs()
			if len(ways) > 0 && ways[0].LinkIndex == now.Index && now.MTU >= 576 && now.MTU <= math.MaxUint16 {
				return now.MTU
			}
		}
	}
	return 0
}

// change makes a change because of what is wrong, or returns that as damage when looking.
func (at *survey) change(wrong, what string, do func() error) error {
	if at.looking {
		return damage(wrong)
	}
	if err := do(); err != nil {
		return fmt.Errorf("cannot %s: %w", what, err)
	}
	return nil
}

// damage returns what ensure would repair; "": nothing. An error of ensure is no damage.
func (at *survey) damage(ensure func(at *survey) error) string {
	at.looking = true
	defer func() { at.looking = false }()
	var wrong damage
	if errors.As(ensure(at), &wrong) {
		return string(wrong)
	}
	return ""
}

// ensureHardwareAddr sets the link's hardware address, unless mac is nil.
func (at *survey) ensureHardwareAddr(link netlink.Link, mac net.HardwareAddr) error {
	now := link.Attrs()
	if mac == nil || bytes.Equal(now.HardwareAddr, mac) {
		return nil
	}
	return at.change(fmt.Sprintf("link %s has the hardware address %s", now.Name, now.HardwareAddr),
		"set hardware address of "+now.Name, func() error { return at.c.LinkSetHardwareAddr(link, mac) })
}

func (at *survey) ensureMTU(link netlink.Link, mtu int) error {
	now := link.Attrs()
	if now.MTU == mtu {
		return nil
	}
	return at.change(fmt.Sprintf("link %s has the MTU %d", now.Name, now.MTU),
		"set MTU of "+now.Name, func() error {
			now.MTU = mtu // other links' MTU depends on it
			return at.c.LinkSetMTU(link, mtu)
		})
}

func (at *survey) ensureUp(link netlink.Link) error {
	now := link.Attrs()
	if now.Flags&net.FlagUp != 0 {
		return nil
	}
	return at.change("link "+now.Name+" is down", "set "+now.Name+" up", func() error { return at.c.LinkSetUp(link) })
}

// ensureSysctl sets a sysctl of the namespace. A missing one is an error.
func (at *survey) ensureSysctl(key, value string) error {
	now, err := readSysctl(key)
	if err != nil || now == value {
		return err
	}
	return at.change(fmt.Sprintf("%s is %s", key, now), "change a setting", func() error { return setSysctl(key, value) })
}

// switchIPv6 switches IPv6 on or off for a link, or for "all" and "default". On a kernel
// without IPv6, off needs nothing. Where it is on, only we give addresses, usable at once.
func (at *survey) switchIPv6(link string, on bool) error {
	dir := "net/ipv6/conf/" + link + "/"
	if !on {
		if err := at.ensureSysctl(dir+"disable_ipv6", "1"); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	for _, setting := range [][2]string{{"accept_ra", "0"}, {"autoconf", "0"}, {"accept_dad", "0"}, {"disable_ipv6", "0"}} {
		err := at.ensureSysctl(dir+setting[0], setting[1])
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s has no IPv6; the kernel does not support it: %w", link, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ensureAddresses sets exactly these addresses beside the kernel's link-local ones of IPv6.
func (at *survey) ensureAddresses(link netlink.Link, want []netip.Prefix) error {
	name := link.Attrs().Name
	missing := slices.Clone(want)
	for _, a := range at.addresses {
		if a.LinkIndex != link.Attrs().Index {
			continue
		}
		p := prefixOf(a.IPNet)
		if i := slices.Index(missing, p); i >= 0 && a.Peer == nil {
			missing = slices.Delete(missing, i, i+1)
			continue
		}
		if p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if err := at.change(fmt.Sprintf("link %s has the address %s", name, p),
			fmt.Sprintf("remove address %s from %s", p, name), func() error { return at.c.AddrDel(link, &a) }); err != nil {
			return err
		}
	}
	for _, p := range missing {
		a := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD // usable at once
		}
		if err := at.change(fmt.Sprintf("link %s has no address %s", name, p),
			fmt.Sprintf("add address %s to %s", p, name), func() error { return at.c.AddrAdd(link, a) }); err != nil {
			return err
		}
	}
	return nil
}

// ensureRoutes restores the routes that the kernel makes with a bridge's addresses.
func (at *survey) ensureRoutes(bridge netlink.Link, addresses []netip.Prefix) error {
	for _, p := range addresses {
		if slices.ContainsFunc(at.routes, func(r netlink.Route) bool {
			return r.LinkIndex == bridge.Attrs().Index && prefixOf(r.Dst) == p.Masked()
		}) {
			continue
		}
		route := &netlink.Route{
			Dst: ipNet(p.Masked()), LinkIndex: bridge.Attrs().Index,
			Scope: netlink.SCOPE_LINK, Protocol: unix.RTPROT_KERNEL, Src: p.Addr().AsSlice(),
		}
		if p.Addr().Is6() {
			route.Scope, route.Priority, route.Src = netlink.SCOPE_UNIVERSE, 256, nil
		}
		if err := at.change(fmt.Sprintf("there is no route to %s through bridge %s", p.Masked(), bridge.Attrs().Name),
			fmt.Sprintf("set route to %s", p.Masked()), func() error { return at.c.RouteReplace(route) }); err != nil {
			return err
		}
	}
	return nil
}
