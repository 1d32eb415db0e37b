package network

import (
	"io"
	"os"
)

// RefreshFiles brings the sandboxes' resolv.conf up to date with the host's, and the hosts
// files of those on the host's own network, and tries again to write what containers held
// up. It is for calling every few seconds: it compares contents, so that it makes no
// difference which part of a path was replaced, and how.
func (n *Networks) RefreshFiles() {
	n.mu.Lock()
	defer n.mu.Unlock()
	host := n.resolver()
	for _, s := range n.sandboxes() {
		_ = n.setFiles(s, host) // what is its own was rendered before
	}
}

// hostResolvConf is the resolv.conf of the device, with nameservers that only
// the device itself reaches, unless the service names others.
func (n *Networks) hostResolvConf(s Sandbox) []byte {
	if len(s.DNS) == 0 && len(s.DNSSearch) == 0 && len(s.DNSOptions) == 0 {
		return readBounded(n.resolvConf, maxResolvConf)
	}
	return s.resolver(readResolvConf(n.resolvConf)).render()
}

// readBounded is what the file begins with; nothing where there is none.
func readBounded(path string, limit int64) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil
	}
	return content
}
