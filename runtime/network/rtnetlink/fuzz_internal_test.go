package rtnetlink

import "testing"

// FuzzRead reads anything as each of the objects: nothing makes it fail, and
// what is read is whole. The seeds are what a kernel said.
func FuzzRead(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		if l, ok, err := readLink(data); ok && err == nil && len(l.HardwareAddr) > len(data) {
			t.Errorf("a hardware address of %d bytes in %d", len(l.HardwareAddr), len(data))
		}
		if a, err := readAddress(data); err == nil && a.Peer.IsValid() && a.Prefix.Bits() != a.Prefix.Addr().BitLen() {
			t.Errorf("%s has a peer and is not one address", a.Prefix)
		}
		if r, ok, err := readRoute(data); ok && (err != nil || !r.Destination.IsValid()) {
			t.Errorf("a route to %s is taken: %v", r.Destination, err)
		}
	})
}
