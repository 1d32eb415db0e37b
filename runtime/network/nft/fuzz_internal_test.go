package nft

import (
	"testing"

	"github.com/margolite/margolite/runtime/network/netlink"
)

// FuzzRead reads anything as each of the objects, and asks all that can be asked
// about the expressions of a rule: nothing makes it fail, and what was read is
// written as it is read. The seeds are what a kernel said.
func FuzzRead(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = readTable(data)
		if c, err := readChain(data); err == nil && c.Base != nil && len(c.Base.Type) > len(data) {
			t.Errorf("a type of %d bytes in %d", len(c.Base.Type), len(data))
		}
		if elements, err := readElements(data); err == nil {
			for _, e := range elements {
				if e.Timeout < 0 || e.Expires < 0 {
					t.Errorf("an element lasts %s and ends in %s", e.Timeout, e.Expires)
				}
			}
		}
		r, err := readRule(data)
		if err != nil {
			return
		}
		for _, e := range r.Exprs {
			e.Verdict()
			e.LooksUpVerdict()
			e.LoadsHeader()
			e.Compared()
			again, err := readExpr(netlink.Value(e.Encoded()))
			if err != nil || again.name != e.name || string(again.data) != string(e.data) {
				t.Errorf("%q is read as %q: %v", e, again, err)
			}
		}
	})
}
