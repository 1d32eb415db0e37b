package network

import (
	"bytes"
	"log/slog"
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/margolite/margolite/test/expect"
)

// FuzzAnswer asks anything: nothing makes it fail, and what it says is a reply to
// the question, in the bounds of what was asked for.
func FuzzAnswer(f *testing.F) {
	ask := func(name string, kind dnsmessage.Type) []byte {
		m := dnsmessage.Message{
			Header:    dnsmessage.Header{ID: 1},
			Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
		}
		return expect.Value(m.Pack())(f)
	}
	f.Add(ask("db.", dnsmessage.TypeA), false)
	f.Add(ask("DB.shop_default.", dnsmessage.TypeAAAA), true)
	f.Add(ask("2.0.0.10.in-addr.arpa.", dnsmessage.TypePTR), false)
	f.Add(ask("2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", dnsmessage.TypePTR), false)
	f.Add(ask("ext.example.", dnsmessage.TypeMX), false)
	f.Add(ask(".", dnsmessage.TypeNS), false)
	f.Add(bytes.Repeat([]byte{0xc0, 0x0c}, 100), true)
	var hosts bytes.Buffer
	hosts.WriteString("127.0.0.1\tlocalhost\nfd00::2\tdb\n# 10.0.0.9 db\nnonsense\n")
	addr := netip.MustParseAddr("10.0.0.2")
	for range 200 {
		hosts.WriteString(addr.String() + "\tdb\talias\n")
		addr = addr.Next()
	}
	content := hosts.Bytes()
	f.Fuzz(func(t *testing.T, message []byte, stream bool) {
		z := &zone{dns: newDNS("/nowhere", slog.New(slog.DiscardHandler), nil), name: "z"}
		shop := Network{Name: "shop_default", Subnet: netip.MustParsePrefix("10.0.0.0/16"), Subnet6: netip.MustParsePrefix("fd00::/64")}
		z.view.Store(&view{
			Sandbox{DNSSearch: []string{"site.example"}, Attached: []Attachment{{Network: shop}}},
			&sandboxFiles{wanted: map[string][]byte{hostsName: content}},
		})
		asked := bytes.Clone(message)
		reply, forward := z.answer(message, stream)
		expect.Equal(t, asked, message, "query after it was answered")
		if forward != nil {
			forward.slot.Release()
			if reply != nil || forward.failure(dnsmessage.RCodeServerFailure) == nil && forward.Name.Length > 0 {
				t.Error("neither answered nor forwarded")
			}
			return
		}
		if reply == nil {
			return
		}
		limit := maxMessage
		if stream {
			limit = maxStream
		}
		var m dnsmessage.Message
		if err := m.Unpack(reply); err != nil || len(reply) > limit || !m.Response || !bytes.Equal(reply[:2], message[:2]) {
			t.Errorf("%d bytes, %v: %+v", len(reply), err, m.Header)
		}
	})
}
