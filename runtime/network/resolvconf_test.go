package network

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestResolvConf(t *testing.T) {
	for _, c := range []struct{ name, host, want string }{
		{"is taken over", "nameserver 192.0.2.53\nsearch example.com lan\noptions ndots:2 rotate\n", "nameserver 192.0.2.53\nsearch example.com lan\noptions ndots:2 rotate\n"},
		{"has no nameserver of the host's own", "nameserver 127.0.0.53\nnameserver 192.0.2.53\nnameserver 127.0.0.1\n", "nameserver 192.0.2.53\n"},
		{"has no nameserver that takes IPv6", "nameserver fe80::1%eth0\nnameserver 2001:db8::53\nnameserver 192.0.2.53\n", "nameserver 192.0.2.53\n"},
		{"has three nameservers at most", "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n", "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\n"},
		{"has the last search list", "domain old.example\nsearch new.example.\n", "search new.example\n"},
		{"has no comments", "# made by dhcp\n; nameserver 192.0.2.1\nnameserver 192.0.2.53 # ours\n", "nameserver 192.0.2.53\n"},
		{"has nothing it does not know", "sortlist 130.155.160.0\nlookup file bind\nnameserver\nnameserver x\noptions $(reboot) ndots:x\n", ""},
		{"is empty without a host's", "", ""},
		{"takes Windows line ends", "nameserver 192.0.2.53\r\nsearch lan\r\n", "nameserver 192.0.2.53\nsearch lan\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := string(parseResolvConf([]byte(c.host)).render()); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestResolvConfIsReadUpToALimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	content := "nameserver 192.0.2.53\n" + strings.Repeat("# padding\n", maxResolvConf/10) + "nameserver 192.0.2.54\n"
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := len(readResolvConf(path).nameservers); got != 1 {
		t.Errorf("got %d nameservers, want 1", got)
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add([]byte("nameserver 192.0.2.53\nsearch example.com\noptions ndots:2\n"))
	f.Add([]byte("domain a.\nsearch\tb  c\r\nnameserver ::1%lo\n"))
	f.Add([]byte("options timeout:1 \x00 attempts:\n\nnameserver 127.0.0.1"))
	f.Fuzz(func(t *testing.T, content []byte) {
		first := parseResolvConf(content).render()
		if len(first) > maxNameservers*32+maxSearch*256+maxOptions*34+64 {
			t.Errorf("%d bytes are not bounded", len(first))
		}
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
