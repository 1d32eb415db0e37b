// Package port has the rules and the text form of published ports. It also recognises this
// device's own addresses.
package port

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// FirstFree and LastFree bound the automatically chosen ports.
const FirstFree, LastFree = 49153, 65535

// Overlap tells whether listeners at both addresses conflict. The zero value is every address of
// the host, the unspecified one every one of its family.
func Overlap(a, b netip.Addr) bool {
	switch {
	case !a.IsValid() || !b.IsValid() || a == b:
		return true
	case a.Is4() != b.Is4():
		return false
	}
	return a.IsUnspecified() || b.IsUnspecified()
}

// Text is the usual form of a published port: 0.0.0.0:8080->80/tcp.
func Text(host netip.Addr, on string, container uint16, protocol string) string {
	return fmt.Sprintf("%s->%d/%s", net.JoinHostPort(host.String(), on), container, protocol)
}

// Near tells whether an address is this device's, including networks of workloads, or is
// link-local. Services there trust their callers, so outsiders must not direct the device to
// them. With an error the address may be this device's.
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
