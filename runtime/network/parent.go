package network

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/margolite/margolite/runtime/network/rtnetlink"
)

// newLink is the link that a sandbox gets on a network of the drivers macvlan
// and ipvlan. It has to be made on the parent, in the sandbox's namespace.
func newLink(w Network) (rtnetlink.NewLink, error) {
	switch w.Driver + " " + w.Mode {
	case "macvlan ", "macvlan bridge":
		return rtnetlink.NewLink{Kind: rtnetlink.Macvlan, Mode: rtnetlink.MacvlanBridge}, nil
	case "macvlan private":
		return rtnetlink.NewLink{Kind: rtnetlink.Macvlan, Mode: rtnetlink.MacvlanPrivate}, nil
	case "macvlan vepa":
		return rtnetlink.NewLink{Kind: rtnetlink.Macvlan, Mode: rtnetlink.MacvlanVEPA}, nil
	case "macvlan passthru":
		return rtnetlink.NewLink{Kind: rtnetlink.Macvlan, Mode: rtnetlink.MacvlanPassthrough}, nil
	case "ipvlan ", "ipvlan l2":
		return rtnetlink.NewLink{Kind: rtnetlink.IPvlan, Mode: rtnetlink.IPvlanL2}, nil
	case "ipvlan l3":
		return rtnetlink.NewLink{Kind: rtnetlink.IPvlan, Mode: rtnetlink.IPvlanL3}, nil
	case "ipvlan l3s":
		return rtnetlink.NewLink{Kind: rtnetlink.IPvlan, Mode: rtnetlink.IPvlanL3S}, nil
	}
	return rtnetlink.NewLink{}, fmt.Errorf("driver %s has no mode %.40q", w.Driver, w.Mode)
}

// routesItself says that the network knows no neighbours: everything goes to
// the host, which finds the way.
func (w Network) routesItself() bool {
	return w.Driver == driverIPvlan && (w.Mode == "l3" || w.Mode == "l3s")
}

// ensureParent makes sure that there is a link to sit on: one of the host's, or
// a VLAN of it such as eth0.100 that is made where it is missing.
func (o owner) ensureParent(c *rtnetlink.Conn, w Network) error {
	parent, err := findLink(c, w.Parent)
	if err != nil {
		return err
	}
	if parent != nil {
		switch other, by, ok := readMark(parent.Alias); {
		case by.known() && !by.is(o):
			return fmt.Errorf("link %s: %w", w.Parent, otherOwner(by))
		case ok && other != marked(w.Name):
			return fmt.Errorf("link %s was made for network %s", w.Parent, other)
		}
		return o.ensureOwnParent(c, w, parent)
	}
	name, number, ok := strings.Cut(w.Parent, ".")
	id, err := strconv.ParseUint(number, 10, 12)
	if !ok || err != nil || id == 0 || id == 4095 {
		return fmt.Errorf("the device has no link %s", w.Parent)
	}
	master, err := findLink(c, name)
	if err != nil {
		return err
	}
	if master == nil {
		return fmt.Errorf("the device has no link %s for VLAN %d", name, id)
	}
	return o.makeParent(c, w, rtnetlink.NewLink{Kind: rtnetlink.VLAN, Name: w.Bridge, Parent: master.Index, VLAN: uint16(id)})
}

// makeParent makes the link under a name of ours, by which it is found again
// if we are killed, and gives it its own name when it is marked.
func (o owner) makeParent(c *rtnetlink.Conn, w Network, link rtnetlink.NewLink) error {
	made, err := findLink(c, w.Bridge)
	if err != nil {
		return err
	}
	if made == nil {
		if err := c.AddLink(link); err != nil {
			return fmt.Errorf("cannot add link %s: %w", w.Parent, err)
		}
		if made, err = mustFindLink(c, w.Bridge); err != nil {
			return err
		}
	}
	if err := o.ensureMark(c, made, w.Name); err != nil {
		return err
	}
	if err := c.SetName(made.Index, w.Parent); err != nil {
		return fmt.Errorf("cannot name link %s: %w", w.Parent, err)
	}
	made.Name = w.Parent
	return o.ensureOwnParent(c, w, made)
}

// ensureOwnParent brings the link up if it is one that we made. The state of a
// link of the host is the host's business.
func (o owner) ensureOwnParent(c *rtnetlink.Conn, w Network, link *rtnetlink.Link) error {
	if !o.madeFor(w, link) {
		return nil
	}
	if err := o.ensureMark(c, link, w.Name); err != nil {
		return err
	}
	if err := switchIPv6(w.Parent, false); err != nil {
		return err
	}
	return setUp(c, link)
}

// madeFor says whether we made the link for this network.
func (o owner) madeFor(w Network, link *rtnetlink.Link) bool {
	network, by, ok := readMark(link.Alias)
	return ok && network == marked(w.Name) && (by.is(o) || !by.known())
}

func (o owner) removeParent(c *rtnetlink.Conn, w Network) error {
	link, err := findLink(c, w.Parent)
	if link == nil || !o.madeFor(w, link) {
		return err
	}
	return removeLink(c, w.Parent)
}
