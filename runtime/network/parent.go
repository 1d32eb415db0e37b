package network

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// newLink returns a macvlan or ipvlan link, to be made on the parent in the sandbox.
func newLink(w Network, attrs netlink.LinkAttrs) (netlink.Link, error) {
	macvlan := map[string]netlink.MacvlanMode{
		"": netlink.MACVLAN_MODE_BRIDGE, "bridge": netlink.MACVLAN_MODE_BRIDGE, "private": netlink.MACVLAN_MODE_PRIVATE,
		"vepa": netlink.MACVLAN_MODE_VEPA, "passthru": netlink.MACVLAN_MODE_PASSTHRU,
	}
	ipvlan := map[string]netlink.IPVlanMode{
		"": netlink.IPVLAN_MODE_L2, "l2": netlink.IPVLAN_MODE_L2, "l3": netlink.IPVLAN_MODE_L3, "l3s": netlink.IPVLAN_MODE_L3S,
	}
	if mode, ok := macvlan[w.Mode]; ok && w.Driver == driverMacvlan {
		return &netlink.Macvlan{LinkAttrs: attrs, Mode: mode}, nil
	}
	if mode, ok := ipvlan[w.Mode]; ok && w.Driver == driverIPvlan {
		return &netlink.IPVlan{LinkAttrs: attrs, Mode: mode}, nil
	}
	return nil, fmt.Errorf("driver %s has no mode %.40q", w.Driver, w.Mode)
}

func sameKind(link, want netlink.Link) bool {
	switch want := want.(type) {
	case *netlink.Macvlan:
		link, ok := link.(*netlink.Macvlan)
		return ok && link.Mode == want.Mode
	case *netlink.IPVlan:
		link, ok := link.(*netlink.IPVlan)
		return ok && link.Mode == want.Mode
	}
	return false
}

// routesItself reports that the network has no neighbours: the host routes everything.
func (w Network) routesItself() bool {
	return w.Driver == driverIPvlan && (w.Mode == "l3" || w.Mode == "l3s")
}

// ensureParent finds the parent on the host, or makes a missing VLAN such as eth0.100.
func (o owner) ensureParent(at *survey, w Network) error {
	if parent := at.links[w.Parent]; parent != nil {
		switch other, by := readMark(parent); {
		case !by.known(): // a link of the host
		case !by.is(o):
			return fmt.Errorf("link %s: %w", w.Parent, otherOwner(by))
		case other != marked(w.Name):
			return fmt.Errorf("link %s was made for network %s", w.Parent, other)
		}
		return o.ensureOwnParent(at, w, parent)
	}
	name, number, ok := strings.Cut(w.Parent, ".")
	id, err := strconv.ParseUint(number, 10, 12)
	if !ok || err != nil || id == 0 || id == 4095 {
		return fmt.Errorf("the device has no link %s", w.Parent)
	}
	master := at.links[name]
	if master == nil {
		return fmt.Errorf("the device has no link %s for VLAN %d", name, id)
	}
	return at.change("link "+w.Parent+" is gone", "make link "+w.Parent, func() error {
		attrs := linkAttrs(w.Bridge)
		attrs.ParentIndex = master.Attrs().Index
		return o.makeParent(at, w, &netlink.Vlan{LinkAttrs: attrs, VlanId: int(id)})
	})
}

// makeParent uses a name of ours, which identifies it after a kill, until it is marked.
func (o owner) makeParent(at *survey, w Network, link netlink.Link) error {
	made := at.links[w.Bridge]
	if made == nil {
		err := at.c.LinkAdd(link)
		if err == nil {
			made, err = mustFindLink(at.c, w.Bridge)
		}
		if err != nil {
			return err
		}
	}
	if err := o.ensureMark(at, made, w.Name); err != nil {
		return err
	}
	if err := at.c.LinkSetName(made, w.Parent); err != nil {
		return err
	}
	made.Attrs().Name, at.links[w.Parent] = w.Parent, made
	return o.ensureOwnParent(at, w, made)
}

// ensureOwnParent brings the link up if we made it; others are up to the host.
func (o owner) ensureOwnParent(at *survey, w Network, link netlink.Link) error {
	if network, by := readMark(link); !by.is(o) || network != marked(w.Name) {
		return nil
	}
	if err := o.ensureMark(at, link, w.Name); err != nil {
		return err
	}
	if err := at.switchIPv6(w.Parent, false); err != nil {
		return err
	}
	return at.ensureUp(link)
}
