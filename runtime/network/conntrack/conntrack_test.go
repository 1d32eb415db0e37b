package conntrack_test

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/conntrack"
	"github.com/margolite/margolite/test/isolated"
)

func TestMain(m *testing.M) { os.Exit(isolated.Main(m)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A conversation that is translated, and another one, are known until they are
// forgotten.
func TestFlowsAreKnownUntilTheyAreForgotten(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and the program nft")
	}
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader(`
table ip t { chain c { type nat hook output priority -100; udp dport 7000 dnat to 127.0.0.1:7001; }; }
table ip6 t { chain c { type filter hook output priority 0; ct state new accept; }; }
`)
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	c, err := conntrack.Open()
	must(t, err)
	defer c.Close()
	for to, want := range map[string]conntrack.Flow{
		"127.0.0.1:7000": {Asked: netip.MustParseAddrPort("127.0.0.1:7000"), Answering: netip.MustParseAddrPort("127.0.0.1:7001")},
		"127.0.0.1:7002": {Asked: netip.MustParseAddrPort("127.0.0.1:7002"), Answering: netip.MustParseAddrPort("127.0.0.1:7002")},
		"[::1]:7003":     {Asked: netip.MustParseAddrPort("[::1]:7003"), Answering: netip.MustParseAddrPort("[::1]:7003")},
	} {
		family, other := byte(unix.AF_INET), byte(unix.AF_INET6)
		if want.Asked.Addr().Is6() {
			family, other = other, family
		}
		conn, err := net.Dial("udp", to)
		must(t, err)
		defer conn.Close()
		// The kernel knows a conversation when its first packet is through.
		if _, err := conn.Write([]byte("?")); err != nil && !strings.Contains(err.Error(), "refused") {
			t.Fatal(err)
		}
		wanted := func(f conntrack.Flow) bool {
			return f.Protocol == unix.IPPROTO_UDP && f.Asked == want.Asked && f.Answering == want.Answering
		}
		found, err := c.Flows(family, wanted)
		must(t, err)
		if len(found) != 1 {
			t.Fatalf("to %s: found %v", to, found)
		}
		if wrong, err := c.Flows(other, wanted); err != nil || len(wrong) > 0 {
			t.Errorf("to %s: found %v of the other family: %v", to, wrong, err)
		}
		for range 2 { // the second time it is gone
			must(t, c.Forget(found[0]))
		}
		if found, err = c.Flows(family, wanted); err != nil || len(found) > 0 {
			t.Errorf("to %s: it is still known: %v %v", to, found, err)
		}
	}
}
