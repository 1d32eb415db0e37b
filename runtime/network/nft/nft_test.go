package nft_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/nft"
	"github.com/margolite/margolite/test/isolated"
)

// What is written is looked at with the program nft, and the other way round.
func TestMain(m *testing.M) { os.Exit(isolated.Main(m)) }

func open(t *testing.T) *nft.Conn {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and the program nft")
	}
	c, err := nft.Open()
	must(t, err)
	t.Cleanup(func() {
		must(t, c.Close())
		run(t, "flush ruleset")
	})
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run has nft do it.
func run(t *testing.T, commands string) string {
	t.Helper()
	cmd := exec.Command("nft", "--stateless", "-f", "-")
	cmd.Stdin = strings.NewReader(commands)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	return string(out)
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func name(s string) []byte { return append([]byte(s), make([]byte, unix.IFNAMSIZ-len(s))...) }

func TestNFTShowsWhatIsWritten(t *testing.T) {
	c := open(t)
	table := nft.Table{Family: nft.IPv4, Name: "t"}
	links := nft.Set{Table: table, Name: "links", ID: 1, Key: []nft.Type{nft.LinkName}}
	seen := nft.Set{Table: table, Name: "seen", ID: 2, Key: []nft.Type{nft.LinkName, nft.IPv4Address, nft.Protocol, nft.Service}, Dynamic: true, Size: 99}
	lead := nft.Set{Table: table, Name: "lead", ID: 3, Key: []nft.Type{nft.Protocol, nft.Service}, Value: []nft.Type{nft.IPv4Address, nft.Service}}
	sub := nft.Chain{Table: table, Name: "sub"}
	in := nft.Chain{Table: table, Name: "in", Base: &nft.Base{Type: nft.ChainNAT, Hook: unix.NF_INET_PRE_ROUTING, Priority: nft.PriorityDNAT + 5, Policy: nft.Accept}}
	const network, transport = unix.NFT_PAYLOAD_NETWORK_HEADER, unix.NFT_PAYLOAD_TRANSPORT_HEADER
	var b nft.Batch
	b.AddTable(table)
	b.AddSet(links)
	b.AddSet(seen)
	b.AddSet(lead)
	b.AddElements(links, []nft.Element{{Key: name("eth7")}})
	b.AddElements(lead, []nft.Element{{Key: []byte{6, 0, 0, 0, 0, 80, 0, 0}, Value: []byte{10, 0, 0, 1, 0, 81, 0, 0}}})
	b.AddElements(seen, []nft.Element{{Key: append(name("eth7"), 10, 0, 0, 2, 17, 0, 0, 0, 0, 53, 0, 0), Timeout: time.Hour}})
	b.AddChain(sub)
	b.AddChain(in)
	for _, r := range []nft.Rule{
		{Exprs: []nft.Expr{nft.LoadMeta(unix.NFT_META_IIFNAME, 1), nft.Lookup(links, 1), nft.Verdict(nft.Jump, "sub")}, Comment: "why"},
		{Exprs: []nft.Expr{nft.LoadMeta(unix.NFT_META_OIFNAME, 1), nft.LookupNot(links, 1), nft.Verdict(nft.Return, "")}},
		{Exprs: []nft.Expr{
			nft.LoadPayload(network, 16, 4, 1), nft.MaskOf(netip.MustParsePrefix("10.1.0.0/12"), 1), nft.Differs(1, []byte{10, 0, 0, 0}), nft.Verdict(nft.Drop, ""),
		}},
		{Exprs: []nft.Expr{nft.LoadConnection(unix.NFT_CT_STATE, 1), nft.Mask(1, native(2)), nft.Differs(1, native(0)), nft.Verdict(nft.Accept, "")}},
		{Exprs: []nft.Expr{
			nft.LoadAddressType(1), nft.Equals(1, native(unix.RTN_LOCAL)),
			nft.LoadMeta(unix.NFT_META_L4PROTO, unix.NFT_REG32_00), nft.LoadPayload(transport, 2, 2, unix.NFT_REG32_01),
			nft.Map(lead, 1), nft.TranslateTo(nft.IPv4, 1, unix.NFT_REG32_01),
		}},
		{Exprs: []nft.Expr{
			nft.LoadMeta(unix.NFT_META_L4PROTO, 1), nft.Equals(1, []byte{unix.IPPROTO_TCP}),
			nft.Immediate(1, []byte{10, 0, 0, 3}), nft.Immediate(2, []byte{0, 90}), nft.TranslateTo(nft.IPv4, 1, 2),
		}},
		{Exprs: []nft.Expr{
			nft.LoadMeta(unix.NFT_META_IIFNAME, unix.NFT_REG32_00), nft.LoadPayload(network, 12, 4, unix.NFT_REG32_04),
			nft.LoadMeta(unix.NFT_META_L4PROTO, unix.NFT_REG32_05), nft.LoadPayload(transport, 2, 2, unix.NFT_REG32_06),
			nft.Remember(seen, 1, unix.NFT_DYNSET_OP_UPDATE, time.Minute),
		}},
	} {
		b.AddRule(in, r)
	}
	must(t, c.Commit(&b))
	const want = `table ip t {
	set links {
		type ifname
		elements = { "eth7" }
	}

	set seen {
		type ifname . ipv4_addr . inet_proto . inet_service
		size 99
		flags dynamic,timeout
		elements = { "eth7" . 10.0.0.2 . udp . 53 timeout 1h }
	}

	map lead {
		type inet_proto . inet_service : ipv4_addr . inet_service
		elements = { tcp . 80 : 10.0.0.1 . 81 }
	}

	chain sub {
	}

	chain in {
		type nat hook prerouting priority dstnat + 5; policy accept;
		iifname @links jump sub comment "why"
		oifname != @links return
		ip daddr != 10.0.0.0/12 drop
		ct state established accept
		fib daddr type local dnat to meta l4proto . th dport map @lead
		meta l4proto tcp dnat to 10.0.0.3:90
		update @seen { iifname . ip saddr . meta l4proto . th dport timeout 1m }
	}
}
`
	// Releases of nft differ in these.
	got := strings.ReplaceAll(run(t, "list ruleset"), "dnat ip to", "dnat to")
	if before, after, found := strings.Cut(got, " expires "); found {
		_, after, _ = strings.Cut(after, " ")
		got = before + " " + after
	}
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	chains, err := c.Chains()
	must(t, err)
	at := slices.IndexFunc(chains, func(c nft.Chain) bool { return c.Name == "in" })
	if at < 0 || chains[at].Table != table || *chains[at].Base != *in.Base {
		t.Errorf("chains are read as %+v", chains)
	}
	rules, err := c.Rules(in)
	must(t, err)
	if len(rules) != 7 || rules[0].Comment != "why" {
		t.Fatalf("rules are read as %+v", rules)
	}
	if code, chain, ok := rules[0].Exprs[2].Verdict(); code != nft.Jump || chain != "sub" || !ok {
		t.Errorf("the verdict is read as %d %q", code, chain)
	}
	if got := rules[2].Exprs[2].Compared(); !slices.Equal(got, []byte{10, 0, 0, 0}) {
		t.Errorf("what is compared is read as %v", got)
	}
	elements, err := c.Elements(lead)
	must(t, err)
	if len(elements) != 1 || elements[0].Key[0] != 6 || elements[0].Value[5] != 81 {
		t.Errorf("elements are read as %+v", elements)
	}
	elements, err = c.Elements(seen)
	must(t, err)
	if len(elements) != 1 || elements[0].Timeout != time.Hour || elements[0].Expires <= 0 || elements[0].Expires > time.Hour {
		t.Errorf("elements are read as %+v", elements)
	}
}

func TestBatchIsAllOrNothing(t *testing.T) {
	c := open(t)
	table := nft.Table{Family: nft.IPv6, Name: "t"}
	var b nft.Batch
	b.AddTable(table)
	b.AddRule(nft.Chain{Table: table, Name: "missing"}, nft.Rule{})
	b.AddChain(nft.Chain{Table: table, Name: "c"})
	b.FlushSet(nft.Set{Table: table, Name: "lost"})
	err := c.Commit(&b)
	if !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "chain missing") || !strings.Contains(err.Error(), "set lost") {
		t.Errorf("got %v", err)
	}
	if tables, err := c.Tables(nft.IPv6); err != nil || len(tables) > 0 {
		t.Errorf("tables are %v: %v", tables, err)
	}
	// The connection is as good as new.
	b = nft.Batch{}
	b.AddTable(table)
	must(t, c.Commit(&b))
	if tables, err := c.Tables(0); err != nil || !slices.Equal(tables, []nft.Table{table}) {
		t.Errorf("tables are %v: %v", tables, err)
	}
	must(t, c.Commit(&nft.Batch{}))
	if _, err := c.Elements(nft.Set{Table: table, Name: "lost"}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("elements of a set that is not there: %v", err)
	}
}

// Far more than a socket takes by default.
func TestBatchMayBeBig(t *testing.T) {
	c := open(t)
	table := nft.Table{Family: nft.IPv4, Name: "t"}
	set := nft.Set{Table: table, Name: "s", ID: 1, Key: []nft.Type{nft.IPv4Address, nft.Service}}
	chain := nft.Chain{Table: table, Name: "c"}
	var b nft.Batch
	b.AddTable(table)
	b.AddSet(set)
	b.AddChain(chain)
	var elements []nft.Element
	for i := range uint32(30000) {
		elements = append(elements, nft.Element{Key: binary.BigEndian.AppendUint32(nil, i<<8|80)[:4:4]})
		elements[i].Key = append(elements[i].Key, 0, 80, 0, 0)
	}
	b.AddElements(set, elements)
	for i := range 5000 {
		b.AddRule(chain, nft.Rule{Exprs: []nft.Expr{nft.Verdict(nft.Accept, "")}, Comment: fmt.Sprint("rule ", i)})
	}
	must(t, c.Commit(&b))
	got, err := c.Elements(set)
	must(t, err)
	rules, err := c.Rules(chain)
	must(t, err)
	if len(got) != len(elements) || len(rules) != 5000 || rules[4999].Comment != "rule 4999" {
		t.Errorf("%d elements and %d rules, want %d and 5000", len(got), len(rules), len(elements))
	}
	// As many errors are told as there is room for.
	b = nft.Batch{}
	for range 20000 {
		b.FlushSet(nft.Set{Table: table, Name: "lost"})
	}
	if err := c.Commit(&b); err == nil || len(err.Error()) > 1000 {
		t.Errorf("got %v", err)
	}
}

func TestOwnedTableEndsWithItsConnection(t *testing.T) {
	c := open(t)
	owner, err := nft.Open()
	must(t, err)
	table := nft.Table{Family: nft.IPv4, Name: "t"}
	var b, remove nft.Batch
	b.AddOwnedTable(table)
	if err := owner.Commit(&b); errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		t.Skip("the kernel has no owners")
	} else if err != nil {
		t.Fatal(err)
	}
	remove.RemoveTable(table)
	if err := c.Commit(&remove); !errors.Is(err, unix.EPERM) {
		t.Errorf("somebody else removes it: %v", err)
	}
	must(t, owner.Close())
	deadline := time.Now().Add(10 * time.Second) // the kernel takes its time
	for {
		tables, err := c.Tables(0)
		must(t, err)
		if len(tables) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it is still there: %v", tables)
		}
	}
}

func TestWatcherHearsWhatChanges(t *testing.T) {
	open(t)
	w, err := nft.Watch()
	must(t, err)
	heard := make(chan nft.Table, 1000)
	ended := make(chan error)
	go func() {
		for {
			changed, err := w.Receive()
			if err != nil {
				ended <- err
				return
			}
			for _, table := range changed {
				heard <- table
			}
		}
	}()
	for _, command := range []string{
		"add table inet t", "add chain inet t c", "add rule inet t c accept", "add set inet t s { type ipv4_addr; }",
		"add element inet t s { 10.0.0.1 }", "flush set inet t s", "flush chain inet t c", "delete table inet t",
	} {
		run(t, command)
		if got, want := <-heard, (nft.Table{Family: nft.Inet, Name: "t"}); got != want {
			t.Errorf("%s: heard of %v", command, got)
		}
		for len(heard) > 0 {
			<-heard
		}
	}
	must(t, w.Close())
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("it ended with %v", err)
	}
}
