package network

import (
	"net/netip"
	"sync"
	"testing"
)

// To find out whether a port is free takes it for a moment.
func TestPortsAreCheckedSideBySide(t *testing.T) {
	p := Port{Protocol: "tcp", HostPort: 49999, ContainerPort: 80, Address: netip.MustParseAddr("10.1.2.3")}
	var n Networks
	var checks sync.WaitGroup
	for range 8 {
		checks.Go(func() {
			for range 100 {
				if err := n.CheckPort(p, nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	checks.Wait()
}
