// Package port has what is said about published ports wherever there are any: in
// a Compose file, in the rules of the kernel, and in messages. It also tells which
// addresses are this device's own.
package port

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// FirstFree and LastFree bound the ports that are taken where nobody chose one.
const FirstFree, LastFree = 49153, 65535

// Overlap says whether listeners at both addresses get the same packets. The zero
// value is every address of the host, the unspecified one every one of its family.
func Overlap(a, b netip.Addr) bool {
	switch {
	case !a.IsValid() || !b.IsValid() || a == b:
		return true
	case a.Is4() != b.Is4():
		return false
	}
	return a.IsUnspecified() || b.IsUnspecified()
}

// Text is a published port the way people write it: 0.0.0.0:8080->80/tcp.
func Text(host netip.Addr, on string, container uint16, protocol string) string {
	return fmt.Sprintf("%s->%d/%s", net.JoinHostPort(host.String(), on), container, protocol)
}

// Near reports whether an address is one of this device's, those of the networks of
// workloads among them, or leads no further than its local link. What listens there
// trusts its callers, so nobody elsewhere may send the device there. With an error the
// address may be this device's.
func Near(a netip.Addr) (bool, error) {
	a = a.Unmap().WithZone("")
	if a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() || a.IsMulticast() {
		return true, nil
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false, fmt.Errorf("cannot determine whether %s is an address of this device: %w", a, err)
	}
	return slices.ContainsFunc(own, func(o net.Addr) bool {
		prefix, err := netip.ParsePrefix(o.String())
		return err == nil && prefix.Addr().Unmap() == a
	}), nil
}
