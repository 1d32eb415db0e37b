package network

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
)

const (
	maxHosts = 1024 // of one hosts file
	maxLine  = 510  // bytes that musl reads of a line
	maxFile  = 1 << 20
)

// Host is an address with its names in a hosts file, each of them one word.
type Host struct {
	Address netip.Addr `json:"address"`
	Names   []string   `json:"names"`
}

// BeginHosts updates a sandbox's hosts file in place, if its content changes. wait returns when
// it is written; if a container blocks that, it is written later.
func (n *Networks) BeginHosts(s Sandbox, hosts []Host) (wait func() error, err error) {
	if _, err = os.Lstat(n.Paths(s).Hosts); err == nil {
		err = n.setHosts(s, hosts)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot write hosts of %s: %w", s, err)
	}
	written := n.beginFiles(s)
	return func() error {
		if err := written(); err != nil {
			return fmt.Errorf("cannot write hosts of %s: %w", s, err)
		}
		return nil
	}, nil
}

// setFiles sets all content but others' names ([Networks.BeginHosts]), and starts writing it.
func (n *Networks) setFiles(s Sandbox, host resolver) (err error) {
	files, hostname, content := n.filesOf(s.file()), s.Hostname, n.sandboxResolver(s, host).render()
	if s.Host {
		content = n.hostResolvConf(s)
		err = n.setHosts(s, nil)
	}
	files.set(resolvConfName, content)
	if s.Host && hostname == "" {
		var failed error
		if hostname, failed = os.Hostname(); failed != nil {
			return fmt.Errorf("cannot determine the name of the host: %w", failed)
		}
	}
	files.set(hostnameName, []byte(hostname+"\n"))
	files.begin()
	return err
}

func (n *Networks) setHosts(s Sandbox, hosts []Host) error {
	content, err := renderHosts(s, hosts)
	if err != nil {
		return err
	}
	if s.Host {
		// Last, so that the service's lines win. A device without such a file names only itself.
		device := readBounded(n.hostsFile, maxFile)
		if len(device) == 0 {
			device = []byte("127.0.0.1\tlocalhost\n")
		}
		content = append(content, device...)
	}
	n.filesOf(s.file()).set(hostsName, content)
	return nil
}

func (s Sandbox) own() []Host {
	var names []string
	if s.Hostname != "" && s.Domainname != "" {
		names = append(names, s.Hostname+"."+s.Domainname)
	}
	if s.Hostname != "" {
		names = append(names, s.Hostname)
	}
	names = append(names, s.Names...)
	var all []Host
	for _, a := range s.Attached {
		for _, addr := range []netip.Addr{a.Address, a.Address6} {
			if addr.IsValid() {
				all = append(all, Host{Address: addr, Names: names})
			}
		}
	}
	if len(all) == 0 && !s.Host {
		all = append(all, Host{Address: netip.AddrFrom4([4]byte{127, 0, 1, 1}), Names: names})
	}
	return all
}

// renderHosts gives localhost no ::1: programs may try it first and listen on 127.0.0.1 only.
func renderHosts(s Sandbox, hosts []Host) ([]byte, error) {
	own := s.own()
	all := slices.Concat(own, s.Extra, hosts)
	if len(all) > maxHosts {
		return nil, fmt.Errorf("%d hosts are too many", len(all))
	}
	var b bytes.Buffer
	if !s.Host {
		b.WriteString("127.0.0.1\tlocalhost\n")
	}
	if slices.ContainsFunc(s.Attached, func(a Attachment) bool { return a.Address6.IsValid() }) {
		b.WriteString("::1\tip6-localhost\tip6-loopback\n")
	}
	for i, h := range all {
		if len(h.Names) == 0 {
			continue
		}
		if !h.Address.IsValid() || h.Address.Zone() != "" {
			return nil, fmt.Errorf("host %q has no usable address", h.Names[0])
		}
		address := h.Address.Unmap().String()
		line := address
		extra := i >= len(own) && i < len(own)+len(s.Extra)
		seen := make(map[string]bool, len(h.Names))
		for _, name := range h.Names {
			if seen[name] || !extra && strings.EqualFold(name, "localhost") { // the container itself
				continue
			}
			seen[name] = true
			if len(line)+1+len(name) > maxLine {
				b.WriteString(line + "\n")
				line = address
			}
			line += "\t" + name
		}
		b.WriteString(line + "\n")
	}
	if b.Len() > maxFile {
		return nil, fmt.Errorf("%d bytes of hosts are too many", b.Len())
	}
	return b.Bytes(), nil
}
