// Package port has what is said about published ports wherever there are any: in
// a Compose file, in the rules of the kernel, and in messages.
package port

import (
	"fmt"
	"net"
	"net/netip"
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
