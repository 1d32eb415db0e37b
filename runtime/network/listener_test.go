package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// hexOf is an address as /proc/net prints it.
func hexOf(address string) string {
	var text strings.Builder
	b := netip.MustParseAddr(address).AsSlice()
	for ; len(b) > 0; b = b[4:] {
		fmt.Fprintf(&text, "%08X", binary.NativeEndian.Uint32(b))
	}
	return text.String()
}

func socketLine(address string, port int, state string, inode int) string {
	return fmt.Sprintf("   0: %s:%04X %s:0000 %s 00000000:00000000 00:00000000 00000000  1000        0 %d 1 0000000000000000 100 0 0 10 0\n",
		hexOf(address), port, hexOf(address), state, inode)
}

func TestListenersAreFound(t *testing.T) {
	anywhere := Port{Protocol: "tcp", HostPort: 8080}
	onOne := Port{Protocol: "tcp", HostPort: 8080, HostIP: netip.MustParseAddr("192.0.2.1")}
	for _, c := range []struct {
		name, line string
		port       Port
		want       bool
	}{
		{"on every address", socketLine("0.0.0.0", 8080, "0A", 7), anywhere, true},
		{"on one address", socketLine("127.0.0.1", 8080, "0A", 7), anywhere, true},
		{"on every address of IPv6", socketLine("::", 8080, "0A", 7), anywhere, true},
		{"without a connection", socketLine("0.0.0.0", 8080, "07", 7), anywhere, true},
		{"on the address in question", socketLine("192.0.2.1", 8080, "0A", 7), onOne, true},
		{"on it as an IPv6 socket", socketLine("::ffff:192.0.2.1", 8080, "0A", 7), onOne, true},
		{"on another address", socketLine("192.0.2.2", 8080, "0A", 7), onOne, false},
		{"on another port", socketLine("0.0.0.0", 8081, "0A", 7), anywhere, false},
		{"with a connection", socketLine("0.0.0.0", 8080, "01", 7), anywhere, false},
		{"of nobody", socketLine("0.0.0.0", 8080, "0A", 0), anywhere, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := make(map[string]bool)
			listeners(strings.NewReader("  sl  local_address rem_address\n"+c.line), c.port, found)
			if found["socket:[7]"] != c.want || len(found) > 1 {
				t.Errorf("got %v", found)
			}
		})
	}
}

func FuzzListeners(f *testing.F) {
	f.Add(socketLine("0.0.0.0", 8080, "0A", 7))
	f.Add(socketLine("::1", 8080, "07", 7))
	f.Add("0: zz:1F90 x 0A 1 2 3 4 5 6\n")
	f.Fuzz(func(t *testing.T, table string) {
		found := make(map[string]bool)
		listeners(strings.NewReader(table), Port{Protocol: "tcp", HostPort: 8080}, found)
		for socket := range found {
			if !strings.HasPrefix(socket, "socket:[") || len(found) > strings.Count(table, "\n")+1 {
				t.Errorf("got %v from %q", found, table)
			}
		}
	})
}
