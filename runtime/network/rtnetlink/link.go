package rtnetlink

import (
	"encoding/binary"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/netlink"
)

// The kinds of links that [Conn.AddLink] makes.
const (
	Bridge  = "bridge"
	Veth    = "veth"
	VLAN    = "vlan"
	Macvlan = "macvlan"
	IPvlan  = "ipvlan"
)

// Modes of macvlan links.
const (
	MacvlanPrivate     = 1 // MACVLAN_MODE_PRIVATE
	MacvlanVEPA        = 2
	MacvlanBridge      = 4
	MacvlanPassthrough = 8
)

// Modes of ipvlan links.
const (
	IPvlanL2  = 0 // IPVLAN_MODE_L2
	IPvlanL3  = 1
	IPvlanL3S = 2
)

// Link is a link as the kernel tells of it.
type Link struct {
	Index        int
	Name         string
	Alias        string // a text for people
	Kind         string // "" for hardware and the loopback
	Parent       int    // the index of the link it sits on; with veth of the other end, maybe in another namespace
	Master       int    // the index of the bridge it is a port of
	MTU          int    // bytes
	HardwareAddr net.HardwareAddr
	Up           bool
	Mode         uint32 // of macvlan and ipvlan
	Port         Port   // where it is one of a bridge
}

// Port is how a bridge treats a link that is attached to it.
type Port struct {
	Hairpin  bool // frames may leave by the port they came from
	Isolated bool // and may not get to other such ports
}

const vethPeer = 1 // VETH_INFO_PEER

// noStatistics leaves out of an answer what is most of it:
// RTEXT_FILTER_SKIP_STATS.
const noStatistics = 1 << 3

func linkMessage(kind uint16, index int) *netlink.Message {
	return &netlink.Message{Type: kind, Header: linkHeader(unix.AF_UNSPEC, index, 0)}
}

// linkHeader is a struct ifinfomsg; flags are set.
func linkHeader(family byte, index int, flags uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	b[0] = family
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], flags)
	binary.NativeEndian.PutUint32(b[12:], flags) // which of them change
	return b
}

// Link finds a link by its name. One that is not there is unix.ENODEV.
func (c *Conn) Link(name string) (Link, error) {
	m := linkMessage(unix.RTM_GETLINK, 0)
	if len(name) < unix.IFNAMSIZ {
		m.Text(unix.IFLA_IFNAME, name)
	} else {
		m.Text(unix.IFLA_ALT_IFNAME, name)
	}
	return c.link(m)
}

// LinkByIndex finds a link by its index. One that is not there is unix.ENODEV.
func (c *Conn) LinkByIndex(index int) (Link, error) {
	return c.link(linkMessage(unix.RTM_GETLINK, index))
}

func (c *Conn) link(m *netlink.Message) (link Link, err error) {
	m.Uint32(unix.IFLA_EXT_MASK, noStatistics)
	err = c.Get(m, func(data []byte) error {
		link, _, err = readLink(data)
		return err
	})
	return link, err
}

// Links are all.
func (c *Conn) Links() ([]Link, error) {
	m := linkMessage(unix.RTM_GETLINK, 0)
	m.Uint32(unix.IFLA_EXT_MASK, noStatistics)
	return netlink.List(c.Conn, m, readLink)
}

func readLink(data []byte) (Link, bool, error) {
	if len(data) < unix.SizeofIfInfomsg {
		return Link{}, false, fmt.Errorf("cannot read link: %d bytes are too few", len(data))
	}
	l := Link{
		Index: int(int32(binary.NativeEndian.Uint32(data[4:]))),
		Up:    binary.NativeEndian.Uint32(data[8:])&unix.IFF_UP != 0,
	}
	var info netlink.Value
	err := netlink.Value(data[unix.SizeofIfInfomsg:]).Each(func(kind uint16, v netlink.Value) error {
		switch kind {
		case unix.IFLA_IFNAME:
			l.Name = v.Text()
		case unix.IFLA_IFALIAS:
			l.Alias = v.Text()
		case unix.IFLA_LINK:
			l.Parent = int(v.Uint32())
		case unix.IFLA_MASTER:
			l.Master = int(v.Uint32())
		case unix.IFLA_MTU:
			l.MTU = int(v.Uint32())
		case unix.IFLA_ADDRESS:
			l.HardwareAddr = append(net.HardwareAddr(nil), v...)
		case unix.IFLA_LINKINFO:
			info = v
		}
		return nil
	})
	if err == nil {
		err = l.readInfo(info)
	}
	if err != nil {
		return Link{}, false, fmt.Errorf("cannot read link %d: %w", l.Index, err)
	}
	return l, true, nil
}

// readInfo reads what is said about the kind, and about the master's.
func (l *Link) readInfo(info netlink.Value) error {
	var own, port netlink.Value
	var master string
	err := info.Each(func(kind uint16, v netlink.Value) error {
		switch kind {
		case unix.IFLA_INFO_KIND:
			l.Kind = v.Text()
		case unix.IFLA_INFO_DATA:
			own = v
		case unix.IFLA_INFO_SLAVE_KIND:
			master = v.Text()
		case unix.IFLA_INFO_SLAVE_DATA:
			port = v
		}
		return nil
	})
	if err != nil {
		return err
	}
	switch l.Kind {
	case Macvlan:
		err = own.Each(func(kind uint16, v netlink.Value) error {
			if kind == unix.IFLA_MACVLAN_MODE {
				l.Mode = v.Uint32()
			}
			return nil
		})
	case IPvlan:
		err = own.Each(func(kind uint16, v netlink.Value) error {
			if kind == unix.IFLA_IPVLAN_MODE {
				l.Mode = uint32(v.Uint16())
			}
			return nil
		})
	}
	if err != nil || master != Bridge {
		return err
	}
	return port.Each(func(kind uint16, v netlink.Value) error {
		set := len(v) > 0 && v[0] != 0
		switch kind {
		case unix.IFLA_BRPORT_MODE:
			l.Port.Hairpin = set
		case unix.IFLA_BRPORT_ISOLATED:
			l.Port.Isolated = set
		}
		return nil
	})
}

// NewLink is a link to be made. What is zero is left to the kernel.
type NewLink struct {
	Kind         string
	Name         string
	Parent       int              // the index of the link it sits on
	Master       int              // the index of the bridge it becomes a port of
	MTU          int              // bytes; with veth of both ends
	HardwareAddr net.HardwareAddr // with veth that of this end
	Namespace    int              // a file descriptor of the one it is made in; 0: this one
	Mode         uint32           // of macvlan and ipvlan
	VLAN         uint16           // 1 to 4094
	Peer         Peer             // of veth
}

// Peer is the other end of a veth pair.
type Peer struct {
	Name         string
	HardwareAddr net.HardwareAddr
	Namespace    int // a file descriptor of the one it is made in; 0: this one
}

// AddLink makes the link, which is down. One that is there is unix.EEXIST.
func (c *Conn) AddLink(l NewLink) error {
	m := linkMessage(unix.RTM_NEWLINK, 0)
	m.Flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	addEnd(m, l.Name, l.MTU, l.HardwareAddr, l.Namespace)
	if l.Parent != 0 {
		m.Uint32(unix.IFLA_LINK, uint32(l.Parent))
	}
	if l.Master != 0 {
		m.Uint32(unix.IFLA_MASTER, uint32(l.Master))
	}
	m.Nest(unix.IFLA_LINKINFO, func() {
		m.Text(unix.IFLA_INFO_KIND, l.Kind)
		m.Nest(unix.IFLA_INFO_DATA, func() {
			switch l.Kind {
			case Veth:
				m.Nest(vethPeer, func() {
					m.Raw(linkHeader(unix.AF_UNSPEC, 0, 0)...)
					addEnd(m, l.Peer.Name, l.MTU, l.Peer.HardwareAddr, l.Peer.Namespace)
				})
			case VLAN:
				m.Uint16(unix.IFLA_VLAN_ID, l.VLAN)
				m.Big16(unix.IFLA_VLAN_PROTOCOL, unix.ETH_P_8021Q)
			case Macvlan:
				m.Uint32(unix.IFLA_MACVLAN_MODE, l.Mode)
			case IPvlan:
				m.Uint16(unix.IFLA_IPVLAN_MODE, uint16(l.Mode))
			}
		})
	})
	return c.Do(m)
}

// addEnd says what both ends of a pair have.
func addEnd(m *netlink.Message, name string, mtu int, mac net.HardwareAddr, namespace int) {
	m.Text(unix.IFLA_IFNAME, name)
	if mtu > 0 {
		m.Uint32(unix.IFLA_MTU, uint32(mtu))
	}
	if mac != nil {
		m.Bytes(unix.IFLA_ADDRESS, mac...)
	}
	if namespace != 0 {
		m.Uint32(unix.IFLA_NET_NS_FD, uint32(namespace))
	}
}

// SetUp brings the link up.
func (c *Conn) SetUp(index int) error {
	return c.Do(&netlink.Message{Type: unix.RTM_SETLINK, Header: linkHeader(unix.AF_UNSPEC, index, unix.IFF_UP)})
}

// SetName renames the link, which has to be down for kernels before 6.2.
func (c *Conn) SetName(index int, name string) error {
	m := linkMessage(unix.RTM_SETLINK, index)
	m.Text(unix.IFLA_IFNAME, name)
	return c.Do(m)
}

// SetAlias gives the link a text for people.
func (c *Conn) SetAlias(index int, alias string) error {
	m := linkMessage(unix.RTM_SETLINK, index)
	m.Bytes(unix.IFLA_IFALIAS, []byte(alias)...)
	return c.Do(m)
}

// SetMTU sets the MTU, in bytes.
func (c *Conn) SetMTU(index, mtu int) error {
	m := linkMessage(unix.RTM_SETLINK, index)
	m.Uint32(unix.IFLA_MTU, uint32(mtu))
	return c.Do(m)
}

// SetHardwareAddr sets the hardware address.
func (c *Conn) SetHardwareAddr(index int, mac net.HardwareAddr) error {
	m := linkMessage(unix.RTM_SETLINK, index)
	m.Bytes(unix.IFLA_ADDRESS, mac...)
	return c.Do(m)
}

// SetMaster makes the link a port of the bridge with this index.
func (c *Conn) SetMaster(index, bridge int) error {
	m := linkMessage(unix.RTM_SETLINK, index)
	m.Uint32(unix.IFLA_MASTER, uint32(bridge))
	return c.Do(m)
}

// SetPort says how the bridge that the link is attached to treats it. Isolated
// takes Linux 4.18; an older one does not say that it cannot.
func (c *Conn) SetPort(index int, p Port) error {
	m := &netlink.Message{Type: unix.RTM_SETLINK, Header: linkHeader(unix.AF_BRIDGE, index, 0)}
	m.Nest(unix.IFLA_PROTINFO, func() {
		m.Bytes(unix.IFLA_BRPORT_MODE, flag(p.Hairpin))
		m.Bytes(unix.IFLA_BRPORT_ISOLATED, flag(p.Isolated))
	})
	return c.Do(m)
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// RemoveLink removes the link, of a veth pair both ends.
func (c *Conn) RemoveLink(index int) error {
	return c.Do(linkMessage(unix.RTM_DELLINK, index))
}
