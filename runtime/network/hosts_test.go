package network

import (
	"bytes"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

func sandboxOf(service string) Sandbox {
	w := Network{Name: "shop_default", Bridge: ownerOf("/").bridgeName("shop_default"), Subnet: netip.MustParsePrefix("172.29.0.0/24"), Gateway: netip.MustParseAddr("172.29.0.1")}
	return Sandbox{
		Project: "shop", Service: service, Number: 1, Hostname: service, Names: []string{"alias", service},
		Attached: []Attachment{{Network: w, Address: netip.MustParseAddr("172.29.0.2")}},
	}
}

func host(address string, names ...string) Host {
	return Host{Address: netip.MustParseAddr(address), Names: names}
}

func TestHostsFile(t *testing.T) {
	web, long := sandboxOf("web"), strings.Repeat("n", 255)
	web.Extra = []Host{host("172.29.0.7", "localhost")} // which the service itself wants
	got := expect.Value(renderHosts(web, []Host{
		host("172.29.0.3", "db", "shop-db-1"),
		host("2001:db8::1", "far", "localhost", "gw..example", long),
		host("172.29.0.4"),
		host("172.29.0.5", long[:200], long[:201], long[:202]),
	}))(t)
	want := "127.0.0.1\tlocalhost\n172.29.0.2\tweb\talias\n172.29.0.7\tlocalhost\n172.29.0.3\tdb\tshop-db-1\n" +
		"2001:db8::1\tfar\tgw..example\t" + long + "\n" +
		"172.29.0.5\t" + long[:200] + "\t" + long[:201] + "\n172.29.0.5\t" + long[:202] + "\n" // musl reads no line of more
	expect.Equal(t, string(got), want, "hosts file")
}

func TestHostsFileRefuses(t *testing.T) {
	for name, hosts := range map[string][]Host{
		"a name without address": {{Names: []string{"db"}}},
		"an address with a zone": {host("fe80::1%eth0", "db")},
		"too many hosts":         make([]Host, maxHosts+1),
	} {
		t.Run(name, func(t *testing.T) {
			expect.ErrorWith(t, expect.ErrorOf(renderHosts(sandboxOf("web"), hosts)), "", "rendering")
		})
	}
}

func TestHostsFileIsMendedAfterATornWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	content := []byte("127.0.0.1\tlocalhost\n172.29.0.2\tweb\n")
	for _, torn := range [][]byte{nil, content[:10], append(bytes.Clone(content), "\n\n\n"...), bytes.Repeat([]byte("x"), 5000)} {
		check(t, os.WriteFile(path, torn, 0o600))
		mounted, err := os.Open(path) // into containers that run: another inode would be another file
		check(t, err)
		defer mounted.Close()
		check(t, replaceContent(path, content))
		expect.Equal(t, string(expect.Value(io.ReadAll(mounted))(t)), string(content), "after %q", torn)
	}
}

var check = expect.Check
