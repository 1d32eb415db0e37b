package network

import (
	"bytes"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

const (
	maxResolvConf  = 64 << 10
	maxNameservers = 3 // no libc uses more
	maxServers     = 8 // some of which may be unusable
	maxSearch      = 16
	maxDomain      = 253 // bytes
	maxOptions     = 16
)

type resolver struct {
	nameservers []netip.Addr
	search      []string
	options     []string
}

// resolver reads the host's resolv.conf without nameservers on the loopback, which containers
// cannot reach. It never adds a nameserver that no one on site chose.
func (n *Networks) resolver() resolver {
	host := readResolvConf(n.resolvConf).reached()
	// The real nameservers, if it names only a forwarder on the host.
	for _, path := range []string{
		"/run/systemd/resolve/resolv.conf",
		"/run/NetworkManager/no-stub-resolv.conf",
		"/tmp/resolv.conf.d/resolv.conf.auto", // OpenWrt
		"/tmp/resolv.conf.auto",               // OpenWrt before 19.07
	} {
		if len(host.nameservers) > 0 {
			break
		}
		if upstream := readResolvConf(path).reached(); len(upstream.nameservers) > 0 {
			host.nameservers = upstream.nameservers
			if len(host.search) == 0 {
				host.search = upstream.search
			}
		}
	}
	return host
}

func readResolvConf(path string) resolver { return parseResolvConf(readBounded(path, maxResolvConf)) }

// reached leaves out the nameservers that a sandbox cannot reach.
func (r resolver) reached() resolver {
	r.nameservers = slices.DeleteFunc(r.nameservers, func(a netip.Addr) bool {
		return a.Zone() != "" || a.IsLoopback() || a.IsLinkLocalUnicast()
	})
	return r
}

// parseResolvConf ignores what it does not understand.
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
			if err == nil && !addr.IsUnspecified() && len(r.nameservers) < maxServers {
				r.nameservers = append(r.nameservers, addr)
			}
		case "search", "domain": // the last one counts
			r.search = nil
			for _, domain := range values {
				name := strings.TrimRight(domain, ".")
				if len(r.search) < maxSearch && len(name) <= maxDomain && checkPathName(name) == nil {
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

// sandboxResolver returns a sandbox's resolver on a host with resolver r. It asks us first;
// while we do not answer, it asks the nameservers that we would ask and it can reach.
func (n *Networks) sandboxResolver(s Sandbox, r resolver) resolver {
	r = s.resolver(r)
	r.nameservers = slices.DeleteFunc(slices.Clone(r.nameservers), func(a netip.Addr) bool {
		return a == dnsAddress || !s.reaches(a)
	})
	if !s.hasDNS() {
		return r
	}
	if s.isInternal() {
		r.nameservers = nil
	}
	r.nameservers = append([]netip.Addr{dnsAddress}, r.nameservers...)
	if s.minDots() < 0 {
		// As in Docker: names without a dot are tried as they are first.
		r.options = append(slices.DeleteFunc(slices.Clone(r.options), isDots), "ndots:0")
	}
	return r
}

// resolver overrides the host's settings with the service's.
func (s Sandbox) resolver(host resolver) resolver {
	host.search = s.search(host.search)
	if len(s.DNSOptions) > 0 {
		host.options = s.DNSOptions
	}
	if len(s.DNS) > 0 {
		host.nameservers = s.DNS
	}
	return host
}

// search returns the search domains of the sandbox, or the host's.
func (s Sandbox) search(host []string) []string {
	if len(s.DNSSearch) == 0 {
		return host
	}
	return slices.DeleteFunc(slices.Clone(s.DNSSearch), func(d string) bool { return d == "." })
}

// minDots returns the service's ndots option; -1: not set.
func (s Sandbox) minDots() int {
	for _, option := range s.DNSOptions {
		if dots, ok := strings.CutPrefix(option, dotsOption); ok {
			if n, err := strconv.Atoi(dots); err == nil {
				return n
			}
		}
	}
	return -1
}

const dotsOption = "ndots:"

func isDots(option string) bool { return strings.HasPrefix(option, dotsOption) }

// reaches reports whether the sandbox has an address of a's family, or no network at all.
func (s Sandbox) reaches(a netip.Addr) bool {
	if len(s.Attached) == 0 {
		return true
	}
	return slices.ContainsFunc(s.Attached, func(at Attachment) bool {
		return a.Is4() && at.Address.IsValid() || a.Is6() && at.Address6.IsValid()
	})
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
