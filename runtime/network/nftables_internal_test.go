package network

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	nl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/test/expect"
)

// inNamespace runs f in a network namespace that ends with it.
func inNamespace(t *testing.T, f func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	check(t, onOwnThread(func() error { return errors.Join(unix.Unshare(unix.CLONE_NEWNET), f()) }))
}

// Far more than a socket takes by default, and many answers, but not any number.
func TestRulesMayBeMany(t *testing.T) {
	var networks []Network
	var ports []Port
	o, subnet := ownerOf("/"), netip.MustParsePrefix("10.0.0.0/24")
	for i := range 300 {
		w := Network{Bridge: o.bridgeName(string(rune(i))), Subnet: subnet}
		networks = append(networks, w)
		subnet = netip.PrefixFrom(lastAddr(subnet).Next(), subnet.Bits())
	}
	for i := range maxPorts {
		ports = append(ports, Port{Protocol: "udp", HostPort: uint16(i + 1), ContainerPort: 1, Address: netip.MustParseAddr("10.0.0.2")})
	}
	expect.Equal(t, len(expect.Value(consistent(ports))(t)), maxPorts, "ports accepted")
	expect.ErrorWith(t, expect.ErrorOf(consistent(append(ports, ports[0]))), "", "one port more")
	r := newRuleset(ipv4(), tableKey{nftables.TableFamilyIPv4, tableName}, o, networks, ports, hostForwarding{}, guarded)
	inNamespace(t, func() error {
		conn := newRules()
		if err := r.write(conn); err != nil {
			return err
		}
		before, err := generation()
		if err != nil {
			return err
		}
		expect.Equal(t, r.isThere(conn), true, "the table is what was written")
		changed, err := replaceRules(conn, r, true)
		if after, _ := generation(); changed || after != before {
			t.Error("the same rules were written again")
		}
		return err
	})
}

// The error of a transaction is short, however much was asked, and nothing of
// it is done.
func TestTransactionIsAllOrNothing(t *testing.T) {
	inNamespace(t, func() error {
		conn := newRules()
		there := &nftables.Table{Family: nftables.TableFamilyIPv6, Name: "t"}
		conn.AddTable(there)
		for range 1000 {
			conn.FlushSet(&nftables.Set{Table: there, Name: "lost"})
		}
		if err := commit(conn); !errors.Is(err, unix.ENOENT) || len(err.Error()) > 200 {
			t.Errorf("got %v", err)
		}
		expect.Equal(t, len(expect.Value(listTables(conn))(t)), 0, "tables")
		conn.AddTable(there) // the connection is as good as new
		return commit(conn)
	})
}

// Who is in the same namespace cannot answer in the kernel's place.
func TestOnlyTheKernelIsListenedTo(t *testing.T) {
	inNamespace(t, func() error {
		c, err := nl.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := bounded(c); err != nil {
			return err
		}
		other, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer unix.Close(other)
		forged, err := nl.Message{Header: nl.Header{Length: 20, Type: nl.Error}, Data: make([]byte, 4)}.MarshalBinary()
		if err != nil {
			return err
		}
		to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: c.PID()}
		expect.Error(t, unix.Sendto(other, forged, 0, to), unix.ECONNREFUSED, "sending")
		return nil
	})
}

// What others keep with rules and elements may be anything, and the library's
// decoders trust it.
func TestUserDataOfOthersIsHarmless(t *testing.T) {
	table := tableKey{nftables.TableFamilyIPv4, tableName}
	broken := []byte{0, 200, 'a'}
	inNamespace(t, func() error {
		conn := newRules()
		conn.AddTable(table.table())
		chain := conn.AddChain(&nftables.Chain{Table: table.table(), Name: "c"})
		conn.AddRule(&nftables.Rule{Table: chain.Table, Chain: chain, Exprs: drop(), UserData: broken})
		if err := commit(conn); err != nil {
			return err
		}
		rules, err := rulesOf(conn, chain)
		if err != nil || len(rules) != 1 || commentOf(rules[0]) != "" || !refuses(rules[0]) || !always(rules[0]) {
			t.Errorf("rules are read as %v: %v", rules, err)
		}
		return nil
	})
	_, err := listed("elements", func() ([]nftables.SetElement, error) {
		_ = broken[2:int(broken[1])] // as the library reads comments of elements
		return nil, nil
	})
	expect.ErrorWith(t, err, "panic", "decoder that panics")
}

func TestRulesThatAreReadInFirewalls(t *testing.T) {
	for name, test := range map[string]struct {
		exprs           []expr.Any
		refuses, always bool
	}{
		"nothing":               {nil, false, true},
		"accept":                {accept(), false, true},
		"drop, and count":       {append(clause{&expr.Counter{}}, drop()...), true, true},
		"drop some":             {append(equals([]byte{1}), drop()...), true, false},
		"a map of verdicts":     {clause{&expr.Lookup{IsDestRegSet: true}}, true, false},
		"a map of something":    {clause{&expr.Lookup{IsDestRegSet: true, DestRegister: 1}}, false, false},
		"to a program":          {clause{&expr.Queue{}}, true, false},
		"to a program, by code": {clause{&expr.Verdict{Kind: expr.VerdictQueue}}, true, true},
		"reject":                {clause{&expr.Reject{}}, true, true},
		"a part of iptables":    {clause{&expr.Target{}}, true, true},
	} {
		r := &nftables.Rule{Exprs: test.exprs}
		expect.Equal(t, refuses(r), test.refuses, "%s: refuses", name)
		expect.Equal(t, always(r), test.always, "%s: always", name)
	}
}

// What others keep with their rules and sets is looked at by its length, whatever is in it.
func FuzzWhatOthersKeepWithRules(f *testing.F) {
	f.Add([]byte{0, 3, 'a', 'b', 0})
	f.Add(binary.BigEndian.AppendUint64(make([]byte, 12), 6))
	f.Fuzz(func(t *testing.T, data []byte) {
		if text := commentOf(&nftables.Rule{UserData: data}); len(text) > len(data) {
			t.Errorf("comment is %q", text)
		}
		half := len(data) / 2
		for _, f := range families() {
			p, ok := portOf(f, nftables.SetElement{Key: data[:half:half], Val: data[half:]})
			expect.True(t, !ok || f.has(p.Address) && (!p.HostIP.IsValid() || f.has(p.HostIP)), "port is read as %v", p)
		}
	})
}
