package network

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/port"
)

const maxPorts = 4096

// Port publishes a port of a sandbox on the host.
type Port struct {
	Protocol      string     `json:"protocol"` // tcp, udp or sctp
	HostIP        netip.Addr `json:"hostIP"`   // zero or unspecified: all addresses of the host in Address's family
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"containerPort"`
	Address       netip.Addr `json:"address"` // of the sandbox
	// Owner names the owner in messages, such as: service web of project shop.
	Owner string `json:"-"`
}

// Errors that a PortError may wrap, besides those of the kernel.
var (
	ErrPortInUse      = &fault.Error{Code: fault.Conflict, Err: errors.New("port is in use")}
	ErrAddressMissing = &fault.Error{Code: fault.Conflict, Err: errors.New("the host has no such address")}
)

// PortError says which port cannot be published.
type PortError struct {
	Port   Port
	Holder string // who has it, if known
	Err    error
}

func (e *PortError) Error() string {
	if e.Holder != "" {
		return fmt.Sprintf("cannot publish port %s: %v: %s has it", e.Port, e.Err, e.Holder)
	}
	return fmt.Sprintf("cannot publish port %s: %v", e.Port, e.Err)
}

func (e *PortError) Unwrap() error { return e.Err }

// String is the port as people write it.
func (p Port) String() string {
	return port.Text(p.listensOn(), strconv.Itoa(int(p.HostPort)), p.ContainerPort, p.Protocol)
}

func (p Port) listensOn() netip.Addr {
	switch {
	case !p.anywhere():
		return p.HostIP
	case p.Address.Is6():
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

func (p Port) anywhere() bool { return !p.HostIP.IsValid() || p.HostIP.IsUnspecified() }

func (p Port) protocol() byte {
	switch p.Protocol {
	case "tcp":
		return unix.IPPROTO_TCP
	case "udp":
		return unix.IPPROTO_UDP
	case "sctp":
		return unix.IPPROTO_SCTP
	}
	return 0
}

func (p Port) target() netip.AddrPort { return netip.AddrPortFrom(p.Address, p.ContainerPort) }

// Overlaps reports whether both take the same packets.
func (p Port) Overlaps(q Port) bool {
	return p.Protocol == q.Protocol && p.HostPort == q.HostPort && p.Address.Is4() == q.Address.Is4() && port.Overlap(p.HostIP, q.HostIP)
}

func (p Port) collides(q Port) bool { return p.Overlaps(q) && p.target() != q.target() }

func (p Port) check() error {
	switch {
	case p.protocol() == 0:
		return fmt.Errorf("protocol %q is not tcp, udp or sctp", p.Protocol)
	case p.HostPort == 0 || p.ContainerPort == 0:
		return errors.New("port 0 is not allowed")
	case !p.Address.IsValid() || p.Address.Zone() != "" || p.Address.Is4In6() || p.Address.IsUnspecified():
		return fmt.Errorf("%q is not the address of a sandbox", p.Address)
	case !p.anywhere() && (p.HostIP.Is4() != p.Address.Is4() || p.HostIP.Zone() != ""):
		return fmt.Errorf("address %s of the host does not lead to %s", p.HostIP, p.Address)
	}
	return nil
}

// consistent returns, in a fixed order, the ports that can be published together, and an error
// for each other port. The first of two wins, so that a newcomer never takes a port.
func consistent(ports []Port) (good []Port, err error) {
	if len(ports) > maxPorts {
		return nil, fmt.Errorf("%d ports are too many to publish", len(ports))
	}
	byPort := make(map[uint16][]Port, len(ports))
	for _, p := range ports {
		if e := p.check(); e != nil {
			err = errors.Join(err, &PortError{Port: p, Err: e})
			continue
		}
		if p.anywhere() {
			p.HostIP = netip.Addr{}
		}
		others := byPort[p.HostPort]
		if i := slices.IndexFunc(others, p.collides); i >= 0 {
			err = errors.Join(err, &PortError{Port: p, Holder: others[i].Owner, Err: ErrPortInUse})
			continue
		}
		if slices.ContainsFunc(others, p.sameAs) {
			continue
		}
		byPort[p.HostPort] = append(others, p)
		good = append(good, p)
	}
	slices.SortFunc(good, func(p, q Port) int {
		return cmp.Or(
			cmp.Compare(p.HostPort, q.HostPort),
			cmp.Compare(p.Protocol, q.Protocol),
			p.HostIP.Compare(q.HostIP),
			p.Address.Compare(q.Address),
		)
	})
	return good, err
}

func (p Port) listensLike(q Port) bool {
	return p.Protocol == q.Protocol && p.HostPort == q.HostPort && (p.HostIP == q.HostIP || p.anywhere() && q.anywhere())
}

func (p Port) sameAs(q Port) bool {
	q.Owner = p.Owner
	return p == q
}

// CheckPort checks whether a port can be published beside those of other sandboxes and the
// processes of the host; the latter do not matter for ports already published for the same
// sandboxes. The error is a *PortError that names the holder. A process that starts to
// listen later gets no packets: published ports come first.
func (n *Networks) CheckPort(p Port, others []Port, already ...Port) error {
	holder, err := "", p.check()
	i := slices.IndexFunc(others, p.collides)
	switch {
	case err != nil:
	case i >= 0:
		holder, err = others[i].Owner, ErrPortInUse
	case !slices.ContainsFunc(already, p.listensLike):
		n.probing.Lock()
		err = tryToListen(p)
		n.probing.Unlock()
		if errors.Is(err, ErrPortInUse) {
			holder = listeningProcess(p)
		}
	}
	if err != nil {
		return &PortError{Port: p, Holder: holder, Err: err}
	}
	return nil
}

// FreePort returns the first port in from..to, or any if both are 0, that can be published.
// Without hostIP it is free for IPv4 and IPv6.
func (n *Networks) FreePort(protocol string, hostIP netip.Addr, from, to uint16, taken []Port) (uint16, error) {
	if from == 0 && to == 0 {
		from, to = port.FirstFree, port.LastFree
	}
	to = max(to, from)
	for number := int(from); number <= int(to); number++ {
		free := true
		for _, f := range families() {
			p := Port{Protocol: protocol, HostIP: hostIP, HostPort: uint16(number), ContainerPort: 1, Address: f.loopback.Addr()}
			if !p.anywhere() && !f.has(hostIP) {
				continue
			}
			switch err := n.CheckPort(p, taken); {
			case errors.Is(err, ErrPortInUse):
				free = false
			case errors.Is(err, ErrAddressMissing) && p.anywhere(): // the host lacks this family
			case err != nil:
				return 0, err
			}
		}
		if free {
			return uint16(number), nil
		}
	}
	return 0, fmt.Errorf("cannot find a free %s port from %d to %d: %w", protocol, from, to, ErrPortInUse)
}

// ForeignPorts returns the ports of other margolites, which need not be running.
func (n *Networks) ForeignPorts(ctx context.Context) (ports []Port, err error) {
	host, err := readFirewall()
	err = cmp.Or(ctx.Err(), err)
	for _, table := range host.tables {
		if by := host.owners[table]; err == nil && !by.is(n.owner) {
			var found []Port
			found, err = portsIn(host.conn, table, by)
			ports = append(ports, found...)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the ports that others published: %w", err)
	}
	return ports, nil
}

// portsIn returns the ports in a table of this owner.
func portsIn(conn *nftables.Conn, table tableKey, by owner) (ports []Port, err error) {
	f := ipv4()
	if table.family == nftables.TableFamilyIPv6 {
		f = ipv6()
	}
	if by.known() {
		by = dirOf(conn, table, by)
	}
	for _, name := range []string{"published", "published_at"} {
		elements, err := elementsOf(conn, setOf(f, table, name))
		if errors.Is(err, unix.ENOENT) {
			continue // the table has gone meanwhile, or belongs to another program and has no such set
		}
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			if p, ok := portOf(f, e); ok {
				p.Owner = by.String()
				ports = append(ports, p)
			}
		}
	}
	return ports, nil
}

// portOf decodes an element of the map published or published_at.
func portOf(f *family, e nftables.SetElement) (p Port, ok bool) {
	key, size := e.Key, int(f.size)
	if len(key) == size+8 {
		p.HostIP, _ = netip.AddrFromSlice(key[:size])
		key = key[size:]
	}
	if len(key) != 8 || len(e.Val) < size+2 {
		return Port{}, false
	}
	for _, p.Protocol = range []string{"tcp", "udp", "sctp"} {
		if p.protocol() == key[0] {
			break
		}
	}
	p.HostPort = binary.BigEndian.Uint16(key[4:])
	p.Address, _ = netip.AddrFromSlice(e.Val[:size])
	p.ContainerPort = binary.BigEndian.Uint16(e.Val[size:])
	return p, p.protocol() == key[0]
}

// tryToListen takes the port for a moment. Package net does not know SCTP.
func tryToListen(p Port) error {
	address, domain, kind := p.listensOn(), unix.AF_INET6, unix.SOCK_STREAM
	var at unix.Sockaddr = &unix.SockaddrInet6{Port: int(p.HostPort), Addr: address.As16()}
	if address.Is4() {
		domain, at = unix.AF_INET, &unix.SockaddrInet4{Port: int(p.HostPort), Addr: address.As4()}
	}
	if p.Protocol == "udp" {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, int(p.protocol()))
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ESOCKTNOSUPPORT) {
		return nil
	}
	if err == nil {
		defer unix.Close(fd)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1) // IPv4 has no such option
		if p.Protocol == "tcp" {                                           // closing connections are not in the way
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
		err = unix.Bind(fd, at)
		if err == nil && p.Protocol == "tcp" {
			err = unix.Listen(fd, 1)
		}
	}
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return ErrPortInUse
	case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EAFNOSUPPORT):
		return ErrAddressMissing
	}
	return err
}
