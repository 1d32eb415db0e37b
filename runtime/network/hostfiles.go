package network

import (
	"io"
	"os"
)

// RefreshFiles updates the sandboxes' resolv.conf from the host's, and the hosts files of
// replicas on the host's network, and retries writes that containers blocked. Call it every
// few seconds: it compares contents, so it does not matter how a file was replaced.
func (n *Networks) RefreshFiles() {
	n.mu.Lock()
	defer n.mu.Unlock()
	host := n.resolver()
	for _, s := range n.sandboxes() {
		_ = n.setFiles(s, host) // its own content was rendered before
	}
}

// hostResolvConf may include nameservers that only the device itself reaches.
func (n *Networks) hostResolvConf(s Sandbox) []byte {
	if len(s.DNS) == 0 && len(s.DNSSearch) == 0 && len(s.DNSOptions) == 0 {
		return readBounded(n.resolvConf, maxResolvConf)
	}
	return s.resolver(readResolvConf(n.resolvConf)).render()
}

// readBounded returns the beginning of the file; nothing if it cannot be read.
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
