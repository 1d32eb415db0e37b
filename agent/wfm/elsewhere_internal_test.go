package wfm

import (
	"net"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/margolite/margolite/test/expect"
)

// A manifest cannot make the device ask what listens on itself, by whichever of its
// addresses, unless the WFM is there as well.
func TestOtherOriginsAreNotTheDeviceItself(t *testing.T) {
	tests := map[string]bool{ // by address: it is near
		"127.0.0.1:443":          true,
		"127.8.9.1:443":          true,
		"[::1]:443":              true,
		"[::ffff:127.0.0.1]:443": true,
		"0.0.0.0:443":            true,
		"[::]:443":               true,
		"169.254.169.254:443":    true, // where clouds keep what a machine must not give away
		"[fe80::1%eth0]:443":     true,
		"224.0.0.251:443":        true,
		"nonsense":               true,
		"10.1.2.3:8443":          false,
		"192.168.1.1:443":        false,
		"[fd00::1]:443":          false,
		"203.0.113.7:443":        false,
	}
	bases := map[string]bool{ // by URL of the WFM: it is on this desk
		"https://wfm.example": false, "https://10.0.0.1": false,
		"https://localhost:8443": true, "https://127.0.0.1": true, "https://[::1]:1": true,
	}
	for _, a := range expect.Value(net.InterfaceAddrs())(t) {
		own := netip.AddrPortFrom(netip.MustParsePrefix(a.String()).Addr(), 443)
		tests[own.String()] = true
		bases["https://"+netip.AddrPortFrom(own.Addr().WithZone(""), 443).String()] = true
	}
	for address, near := range tests {
		for base, desk := range bases {
			c := otherOrigins(expect.Value(url.Parse(base))(t), nil, time.Second)
			refused := c.control != nil && c.control("tcp", address, nil) != nil
			expect.Equal(t, refused, near && !desk, "%s with the WFM at %s: refused", address, base)
		}
	}
}
