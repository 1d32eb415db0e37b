package network

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

func TestResolvConf(t *testing.T) {
	v4 := []Attachment{{Address: netip.MustParseAddr("10.0.0.2")}}
	both := []Attachment{{Address: netip.MustParseAddr("10.0.0.2"), Address6: netip.MustParseAddr("fd00::2")}}
	inside := []Attachment{{Address: v4[0].Address, Network: Network{Internal: true}}}
	const ours = "nameserver 127.0.0.11\n"
	for _, c := range []struct {
		name, host string
		sandbox    Sandbox
		want       string
	}{
		{"is taken over", "nameserver 192.0.2.53\nsearch example.com lan\noptions rotate\n", Sandbox{Attached: v4}, ours + "nameserver 192.0.2.53\nsearch example.com lan\noptions rotate ndots:0\n"},
		{"has no dots of the host", "options ndots:5 rotate\n", Sandbox{Attached: v4}, ours + "options rotate ndots:0\n"},
		{"has the dots of the service", "options rotate\n", Sandbox{Attached: v4, DNSOptions: []string{"ndots:2"}}, ours + "options ndots:2\n"},
		{"has no nameserver of the host's own", "nameserver 127.0.0.53\nnameserver 192.0.2.53\nnameserver 127.0.0.1\n", Sandbox{Attached: v4}, ours + "nameserver 192.0.2.53\noptions ndots:0\n"},
		{"has no nameserver that takes IPv6", "nameserver fe80::1%eth0\nnameserver 2001:db8::53\nnameserver 192.0.2.53\n", Sandbox{Attached: v4}, ours + "nameserver 192.0.2.53\noptions ndots:0\n"},
		{"has one where there is IPv6", "nameserver fe80::1%eth0\nnameserver 2001:db8::53\n", Sandbox{Attached: both}, ours + "nameserver 2001:db8::53\noptions ndots:0\n"},
		{"has every nameserver", "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\n", Sandbox{Attached: v4}, ours + "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\noptions ndots:0\n"},
		{"has the nameservers of the service", "nameserver 192.0.2.1\n", Sandbox{Attached: v4, DNS: []netip.Addr{netip.MustParseAddr("192.0.2.9"), dnsAddress}}, ours + "nameserver 192.0.2.9\noptions ndots:0\n"},
		{"has the domains of the service", "search lan\n", Sandbox{Attached: v4, DNSSearch: []string{"plant.example"}}, ours + "search plant.example\noptions ndots:0\n"},
		{"has no nameserver where nothing is reached", "nameserver 192.0.2.53\n", Sandbox{Attached: inside}, ours + "options ndots:0\n"},
		{"has no domain if told so", "search lan\n", Sandbox{Attached: v4, DNSSearch: []string{"."}}, ours + "options ndots:0\n"},
		{"is the host's without a network", "nameserver 192.0.2.1\nsearch lan\noptions ndots:3\n", Sandbox{}, "nameserver 192.0.2.1\nsearch lan\noptions ndots:3\n"},
		{"has the last search list", "domain old.example\nsearch new.example.\n", Sandbox{}, "search new.example\n"},
		{"has no comments", "# made by dhcp\n; nameserver 192.0.2.1\nnameserver 192.0.2.53 # ours\n", Sandbox{}, "nameserver 192.0.2.53\n"},
		{"has nothing it does not know", "sortlist 130.155.160.0\nlookup file bind\nnameserver\nnameserver x\noptions $(reboot) ndots:x\n", Sandbox{}, ""},
		{"takes Windows line ends", "nameserver 192.0.2.53\r\nsearch lan\r\n", Sandbox{}, "nameserver 192.0.2.53\nsearch lan\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "resolv.conf")
			check(t, os.WriteFile(path, []byte(c.host), 0o600))
			n := &Networks{resolvConf: path}
			expect.Equal(t, string(n.sandboxResolver(c.sandbox, n.resolver()).render()), c.want, "resolv.conf")
		})
	}
}

func TestResolvConfIsReadUpToALimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	content := "nameserver 192.0.2.53\n" + strings.Repeat("# padding\n", maxResolvConf/10) + "nameserver 192.0.2.54\n"
	check(t, os.WriteFile(path, []byte(content), 0o600))
	expect.Equal(t, len(readResolvConf(path).nameservers), 1, "nameservers")
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add([]byte("nameserver 192.0.2.53\nsearch example.com\noptions ndots:2\n"))
	f.Add([]byte("domain a.\nsearch\tb..  c\r\nnameserver ::1%lo\n"))
	f.Add([]byte("options timeout:1 \x00 attempts:\n\nnameserver 127.0.0.1"))
	f.Fuzz(func(t *testing.T, content []byte) {
		first := parseResolvConf(content).render()
		expect.True(t, len(first) <= maxServers*64+maxSearch*256+maxOptions*34+64, "%d bytes are not bounded", len(first))
		for line := range bytes.Lines(first) {
			word, _, _ := bytes.Cut(line, []byte(" "))
			if w := string(word); w != "nameserver" && w != "search" && w != "options" {
				t.Errorf("line %q was let through", line)
			}
		}
		// What was let through is understood in the same way again.
		if second := parseResolvConf(first).render(); !bytes.Equal(first, second) {
			t.Errorf("%q became %q", first, second)
		}
	})
}
