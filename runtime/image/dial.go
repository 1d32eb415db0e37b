package image

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"

	"github.com/margolite/margolite/runtime/fault"
	"github.com/margolite/margolite/runtime/port"
	"github.com/margolite/margolite/runtime/registry"
)

// dialer connects to one host, and to those it refers to by a redirect or as its token service. None
// may be this device unless configured: a registry could otherwise reach services for local programs
// only. The address connected to decides, whatever its name.
type dialer struct {
	allowed map[string]bool // host:port that may be on this device
	local   bool            // the host itself is, by its name: it may name others here
}

// newDialer is for a host[:port] on the wire. Configured hosts, and proxies, may be anywhere.
func newDialer(host string, registries map[string]Registry) *dialer {
	d := &dialer{allowed: make(map[string]bool)}
	d.allow(host)
	for name, r := range registries {
		d.allow(registry.HostOf(name))
		for _, mirror := range r.Mirrors {
			d.allow(registry.HostOf(mirror))
		}
	}
	for _, scheme := range []string{"http", "https"} {
		anywhere := http.Request{URL: &url.URL{Scheme: scheme, Host: "registry.invalid"}}
		proxy, err := http.ProxyFromEnvironment(&anywhere)
		switch {
		case err != nil || proxy == nil: // which requests are told
		case proxy.Port() == "" && strings.HasPrefix(proxy.Scheme, "socks5"):
			d.allow(net.JoinHostPort(proxy.Hostname(), "1080"))
		default:
			d.allow(proxy.Host)
		}
	}
	name := (&url.URL{Host: host}).Hostname()
	address, _ := netip.ParseAddr(name) // the zero one of a name is not near
	near, _ := port.Near(address)
	d.local = near || name == "localhost"
	return d
}

func (d *dialer) allow(host string) {
	u := url.URL{Host: host}
	if u.Port() != "" {
		d.allowed[strings.ToLower(net.JoinHostPort(u.Hostname(), u.Port()))] = true
		return
	}
	for _, port := range []string{"443", "80"} {
		d.allowed[strings.ToLower(net.JoinHostPort(u.Hostname(), port))] = true
	}
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: connectTimeout}
	if !d.local && !d.allowed[strings.ToLower(address)] {
		dialer.Control = func(_, to string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(to)
			if err != nil {
				return err
			}
			near, err := port.Near(at.Addr())
			if near {
				err = fmt.Errorf("%s is %s: %w", address, at.Addr(), errOwnAddress)
			}
			return err
		}
	}
	return dialer.DialContext(ctx, network, address)
}

var errOwnAddress = &fault.Error{
	Code: fault.Refused,
	Err:  errors.New("an address of this device; registries must not redirect there; add the host to registries to allow it"),
}
