package network

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
)

const (
	maxHosts = 1024 // lines of one hosts file
	maxNames = 64   // names of one host
	maxFile  = 1 << 20
)

// Host is a line of a hosts file.
type Host struct {
	Address netip.Addr `json:"address"`
	Names   []string   `json:"names"`
}

// WriteHosts brings the hosts file of the sandbox up to date. The file is
// mounted into containers, so it is written in place, and only when its
// content differs.
func (n *Networks) WriteHosts(s Sandbox, hosts []Host) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := s.check()
	if err == nil {
		err = n.writeHosts(s, hosts)
	}
	if err != nil {
		return fmt.Errorf("cannot write hosts of %s: %w", s, err)
	}
	return nil
}

// writeFiles writes the three files of the sandbox.
func (n *Networks) writeFiles(s Sandbox, hosts []Host) error {
	paths := n.Paths(s)
	if err := os.MkdirAll(filepath.Dir(paths.Hosts), 0o755); err != nil {
		return err
	}
	if err := n.writeHosts(s, hosts); err != nil {
		return err
	}
	resolvConf := n.sandboxResolver(s).render()
	if s.Host {
		resolvConf = n.hostResolvConf(s)
	}
	if err := writeInPlace(paths.ResolvConf, resolvConf); err != nil {
		return err
	}
	hostname := s.Hostname
	if s.Host && hostname == "" {
		var err error
		if hostname, err = os.Hostname(); err != nil {
			return fmt.Errorf("cannot find out the name of the host: %w", err)
		}
	}
	return writeInPlace(paths.Hostname, []byte(hostname+"\n"))
}

func (n *Networks) writeHosts(s Sandbox, hosts []Host) error {
	content, err := renderHosts(s, hosts)
	if err == nil && s.Host {
		// Last, for what a service wants counts more.
		content = append(content, n.hostHosts()...)
	}
	if err != nil {
		return err
	}
	n.dns.setHosts(s, content)
	return writeInPlace(n.Paths(s).Hosts, content)
}

// own are the lines of the sandbox itself, one for each of its addresses.
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

// renderHosts gives localhost no line for ::1: programs that try it first and
// listen on 127.0.0.1 only would miss each other.
func renderHosts(s Sandbox, hosts []Host) ([]byte, error) {
	hosts = append(slices.Clone(s.Extra), hosts...)
	if len(hosts) > maxHosts {
		return nil, fmt.Errorf("%d hosts are too many", len(hosts))
	}
	var b bytes.Buffer
	if !s.Host {
		b.WriteString("127.0.0.1\tlocalhost\n")
	}
	if slices.ContainsFunc(s.Attached, func(a Attachment) bool { return a.Address6.IsValid() }) {
		b.WriteString("::1\tip6-localhost\tip6-loopback\n")
	}
	for _, h := range append(s.own(), hosts...) {
		if len(h.Names) == 0 {
			continue
		}
		if !h.Address.IsValid() || h.Address.Zone() != "" {
			return nil, fmt.Errorf("host %q has no usable address", h.Names[0])
		}
		if len(h.Names) > maxNames {
			return nil, fmt.Errorf("host %s has too many names", h.Address)
		}
		b.WriteString(h.Address.Unmap().String())
		seen := make(map[string]bool, len(h.Names))
		for _, name := range h.Names {
			if err := checkHostName(name); err != nil {
				return nil, err
			}
			if !seen[name] {
				seen[name] = true
				b.WriteString("\t" + name)
			}
		}
		b.WriteByte('\n')
	}
	if b.Len() > maxFile {
		return nil, fmt.Errorf("%d bytes of hosts are too many", b.Len())
	}
	return b.Bytes(), nil
}

// writeInPlace keeps the inode. A file that becomes shorter is first filled up
// with empty lines, so that no reader ever finds the end of the old content
// behind the new one.
func writeInPlace(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, content) {
		return nil
	}
	padded := content
	if surplus := info.Size() - int64(len(content)); surplus > 0 {
		padded = append(bytes.Clone(content), bytes.Repeat([]byte("\n"), int(min(surplus, maxFile)))...)
	}
	_, err = f.WriteAt(padded, 0)
	return errors.Join(err, f.Truncate(int64(len(content))))
}
