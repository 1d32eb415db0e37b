package network

import (
	"bytes"
	"io"
	"net/netip"
	"os"
	"strings"
)

const (
	maxResolvConf  = 64 << 10
	maxNameservers = 3 // no libc asks more
	maxSearch      = 16
	maxOptions     = 16
)

// upstreamFiles tell the real nameservers where the host's resolv.conf names
// only a forwarder of the host's own, which containers cannot reach.
func upstreamFiles() []string {
	return []string{
		"/run/systemd/resolve/resolv.conf",
		"/run/NetworkManager/no-stub-resolv.conf",
		"/tmp/resolv.conf.d/resolv.conf.auto", // OpenWrt
		"/tmp/resolv.conf.auto",               // OpenWrt before 19.07
	}
}

// resolver is what containers need to know of a resolv.conf.
type resolver struct {
	nameservers []netip.Addr
	search      []string
	options     []string
}

// resolver reads the host's. Without a usable nameserver it has none: asking
// one that nobody on site chose is worse than asking nobody.
func (n *Networks) resolver() resolver {
	host := readResolvConf(n.resolvConf)
	for _, path := range upstreamFiles() {
		if len(host.nameservers) > 0 {
			break
		}
		if upstream := readResolvConf(path); len(upstream.nameservers) > 0 {
			host.nameservers = upstream.nameservers
			if len(host.search) == 0 {
				host.search = upstream.search
			}
		}
	}
	return host
}

func (n *Networks) nameservers() []netip.Addr { return n.resolver().nameservers }

func readResolvConf(path string) resolver {
	f, err := os.Open(path)
	if err != nil {
		return resolver{}
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxResolvConf))
	if err != nil {
		return resolver{}
	}
	return parseResolvConf(content)
}

// parseResolvConf takes over what it understands and can be used in a sandbox:
// nameservers that are neither on the loopback nor reached by IPv6.
func parseResolvConf(content []byte) resolver {
	var r resolver
	for line := range bytes.Lines(content) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 {
			continue
		}
		values := fields[1:]
		switch fields[0] {
		case "nameserver":
			addr, err := netip.ParseAddr(values[0])
			usable := err == nil && addr.Is4() && !addr.IsLoopback() && !addr.IsUnspecified()
			if usable && len(r.nameservers) < maxNameservers {
				r.nameservers = append(r.nameservers, addr)
			}
		case "search", "domain": // the last one counts
			r.search = nil
			for _, domain := range values {
				name := strings.TrimSuffix(domain, ".")
				if len(r.search) < maxSearch && checkHostName(name) == nil {
					r.search = append(r.search, name)
				}
			}
		case "options":
			for _, option := range values {
				if len(r.options) < maxOptions && isResolverOption(option) {
					r.options = append(r.options, option)
				}
			}
		}
	}
	return r
}

func isResolverOption(s string) bool {
	name, value, _ := strings.Cut(s, ":")
	return len(s) <= 32 && checkPathName(name) == nil && strings.Trim(value, "0123456789") == ""
}

func (r resolver) render() []byte {
	var b bytes.Buffer
	for _, a := range r.nameservers {
		b.WriteString("nameserver " + a.String() + "\n")
	}
	if len(r.search) > 0 {
		b.WriteString("search " + strings.Join(r.search, " ") + "\n")
	}
	if len(r.options) > 0 {
		b.WriteString("options " + strings.Join(r.options, " ") + "\n")
	}
	return b.Bytes()
}
