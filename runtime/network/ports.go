package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

const maxPorts = 4096

// Port publishes a port of a sandbox on the host.
type Port struct {
	Protocol      string     // "tcp" or "udp"
	HostIP        netip.Addr // zero or 0.0.0.0: every address of the host
	HostPort      uint16
	ContainerPort uint16
	Address       netip.Addr // of the sandbox
}

// What a PortError may wrap, besides what the kernel says.
var (
	ErrPortInUse      = errors.New("port is in use")
	ErrAddressMissing = errors.New("the host has no such address")
)

// PortError says which port cannot be published.
type PortError struct {
	Port Port
	Err  error
}

func (e *PortError) Error() string {
	return fmt.Sprintf("cannot publish port %s: %v", e.Port.listener(), e.Err)
}

func (e *PortError) Unwrap() error { return e.Err }

// listener is the host's side of the port, the way people write it.
func (p Port) listener() string {
	host := "0.0.0.0"
	if !p.anywhere() {
		host = p.HostIP.String()
	}
	return fmt.Sprintf("%s:%d/%s", host, p.HostPort, p.Protocol)
}

func (p Port) anywhere() bool { return !p.HostIP.IsValid() || p.HostIP.IsUnspecified() }

func (p Port) protocol() byte {
	if p.Protocol == "udp" {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

func (p Port) target() netip.AddrPort { return netip.AddrPortFrom(p.Address, p.ContainerPort) }

// collides says that both cannot be published: they take the same packets and
// send them to different places.
func (p Port) collides(q Port) bool {
	return p.Protocol == q.Protocol && p.HostPort == q.HostPort && p.target() != q.target() &&
		(p.anywhere() || q.anywhere() || p.HostIP == q.HostIP)
}

func (p Port) check() error {
	switch {
	case p.Protocol != "tcp" && p.Protocol != "udp":
		return fmt.Errorf("protocol %q is neither tcp nor udp", p.Protocol)
	case p.HostPort == 0 || p.ContainerPort == 0:
		return errors.New("port 0 is none")
	case !p.anywhere() && !p.HostIP.Is4():
		return errors.New("only IPv4 addresses can be published on")
	case !p.Address.Is4():
		return fmt.Errorf("%q is not the address of a sandbox", p.Address)
	}
	return nil
}

// consistent sorts the ports into those that can be published side by side,
// in a fixed order, and an error for each that cannot. Of two that collide
// the first one wins, so that a newcomer never takes a port from others.
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
		if slices.Contains(others, p) {
			continue
		}
		if slices.ContainsFunc(others, p.collides) {
			err = errors.Join(err, &PortError{Port: p, Err: ErrPortInUse})
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
		)
	})
	return good, err
}

// CheckPorts says whether the wanted ports can be published beside those of
// other sandboxes and beside the processes of the host. The error joins a
// *PortError for each that cannot. A process that starts to listen later is
// not heard: published ports come first.
func CheckPorts(ctx context.Context, wanted, published []Port) error {
	var all error
	for i, p := range wanted {
		err := p.check()
		if err == nil && (slices.ContainsFunc(published, p.collides) || slices.ContainsFunc(wanted[:i], p.collides)) {
			err = ErrPortInUse
		}
		if err == nil {
			err = tryToListen(ctx, p)
		}
		if err != nil {
			all = errors.Join(all, &PortError{Port: p, Err: err})
		}
	}
	return all
}

func tryToListen(ctx context.Context, p Port) error {
	host := p.HostIP
	if p.anywhere() {
		host = netip.IPv4Unspecified()
	}
	address := netip.AddrPortFrom(host, p.HostPort).String()
	var listen net.ListenConfig
	var err error
	if p.Protocol == "udp" {
		var conn net.PacketConn
		if conn, err = listen.ListenPacket(ctx, "udp4", address); err == nil {
			return conn.Close()
		}
	} else {
		var listener net.Listener
		if listener, err = listen.Listen(ctx, "tcp4", address); err == nil {
			return listener.Close()
		}
	}
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return ErrPortInUse
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return ErrAddressMissing
	}
	return err
}
