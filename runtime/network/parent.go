package network

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// newLink is the link that a sandbox gets on a network of the drivers macvlan
// and ipvlan. It has to be made on the parent, in the sandbox's namespace.
func newLink(w Network) (netlink.Link, error) {
	switch w.Driver + " " + w.Mode {
	case "macvlan ", "macvlan bridge":
		return &netlink.Macvlan{Mode: netlink.MACVLAN_MODE_BRIDGE}, nil
	case "macvlan private":
		return &netlink.Macvlan{Mode: netlink.MACVLAN_MODE_PRIVATE}, nil
	case "macvlan vepa":
		return &netlink.Macvlan{Mode: netlink.MACVLAN_MODE_VEPA}, nil
	case "macvlan passthru":
		return &netlink.Macvlan{Mode: netlink.MACVLAN_MODE_PASSTHRU}, nil
	case "ipvlan ", "ipvlan l2":
		return &netlink.IPVlan{Mode: netlink.IPVLAN_MODE_L2}, nil
	case "ipvlan l3":
		return &netlink.IPVlan{Mode: netlink.IPVLAN_MODE_L3}, nil
	case "ipvlan l3s":
		return &netlink.IPVlan{Mode: netlink.IPVLAN_MODE_L3S}, nil
	}
	return nil, fmt.Errorf("driver %s has no mode %.40q", w.Driver, w.Mode)
}

// routesItself says that the network knows no neighbours: everything goes to
// the host, which finds the way.
func (w Network) routesItself() bool {
	return w.Driver == driverIPvlan && (w.Mode == "l3" || w.Mode == "l3s")
}

// ensureParent makes sure that there is a link to sit on: one of the host's, or
// a VLAN of it such as eth0.100 that is made where it is missing.
func ensureParent(w Network) error {
	parent, err := findLink(w.Parent)
	if err != nil {
		return err
	}
	if parent != nil {
		if other, ok := strings.CutPrefix(parent.Attrs().Alias, aliasPrefix); ok && other != w.Name {
			return fmt.Errorf("link %s was made for network %s", w.Parent, other)
		}
		return ensureOwnParent(w, parent)
	}
	name, number, ok := strings.Cut(w.Parent, ".")
	id, err := strconv.ParseUint(number, 10, 12)
	if !ok || err != nil || id == 0 || id == 4095 {
		return fmt.Errorf("the device has no link %s", w.Parent)
	}
	master, err := findLink(name)
	if err != nil {
		return err
	}
	if master == nil {
		return fmt.Errorf("the device has no link %s for VLAN %d", name, id)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = w.Bridge, master.Attrs().Index
	return makeParent(w, &netlink.Vlan{LinkAttrs: attrs, VlanId: int(id), VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
}

// makeParent makes the link under a name of ours, by which it is found again
// if we are killed, and gives it its own name when it is marked.
func makeParent(w Network, link netlink.Link) error {
	made, err := findLink(w.Bridge)
	if err != nil {
		return err
	}
	if made == nil {
		if err := netlink.LinkAdd(link); err != nil {
			return fmt.Errorf("cannot add link %s: %w", w.Parent, err)
		}
		if made, err = netlink.LinkByName(w.Bridge); err != nil {
			return fmt.Errorf("cannot find link %s: %w", w.Bridge, err)
		}
	}
	if err := netlink.LinkSetAlias(made, w.alias()); err != nil {
		return fmt.Errorf("cannot mark link %s: %w", w.Bridge, err)
	}
	if err := netlink.LinkSetName(made, w.Parent); err != nil {
		return fmt.Errorf("cannot name link %s: %w", w.Parent, err)
	}
	return ensureOwnParent(w, made)
}

// ensureOwnParent brings the link up if it is one that we made. The state of a
// link of the host is the host's business.
func ensureOwnParent(w Network, link netlink.Link) error {
	if !madeFor(w, link) {
		return nil
	}
	if err := switchIPv6(w.Parent, false); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("cannot set %s up: %w", w.Parent, err)
	}
	return nil
}

// madeFor says whether we made the link for this network.
func madeFor(w Network, link netlink.Link) bool {
	return link.Attrs().Alias == w.alias()
}

func removeParent(w Network) error {
	link, err := findLink(w.Parent)
	if link == nil || !madeFor(w, link) {
		return err
	}
	return removeLink(w.Parent)
}
