package network

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
)

// The table, for one network and one port, as nft shows it:
//
//	set bridges      { type ifname;           elements = { "mgl-a" } }
//	set within       { type ifname . ifname;  elements = { "mgl-a" . "mgl-a" } }
//	set closed       { type ifname }
//	map published    { type inet_proto . inet_service : ipv4_addr . inet_service
//	                   elements = { tcp . 8080 : 172.29.0.2 . 80 } }
//	map published_at { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//
//	chain raw         { type filter hook prerouting priority raw
//	                    iifname @bridges ip daddr 127.0.0.0/8 drop }
//	chain prerouting  { type nat hook prerouting priority dstnat + 5
//	                    ip daddr 127.0.0.0/8 return
//	                    fib daddr type local dnat to ip daddr . meta l4proto . th dport map @published_at
//	                    fib daddr type local dnat to meta l4proto . th dport map @published }
//	chain output      { type nat hook output priority dstnat + 5
//	                    the last two of prerouting }
//	chain forward     { type filter hook forward priority filter + 10
//	                    iifname @closed oifname @closed drop
//	                    oifname != @bridges accept
//	                    ct state established,related accept
//	                    ct status dnat accept
//	                    iifname . oifname @within accept
//	                    drop }
//	chain postrouting { type nat hook postrouting priority srcnat + 5
//	                    ip saddr 127.0.0.0/8 oifname @bridges masquerade
//	                    ip saddr 172.29.0.0/24 oifname != @bridges masquerade
//	                    ip saddr 172.29.0.0/24 oifname "mgl-a" ct status dnat masquerade }
//
// The chains come after those of the host at the standard priorities: the
// host's translations win, and what it refuses it refuses itself. Accepting
// here takes nothing back that another table drops. The family is ip because
// nat in the family inet takes Linux 5.2.
const tableName = "margolite"

// ruleset is everything in the table, in a form that can be written to the
// kernel and compared with what is there.
type ruleset struct {
	table  *nftables.Table
	sets   []*set
	chains []chain
}

type set struct {
	*nftables.Set
	elements []nftables.SetElement
}

type chain struct {
	*nftables.Chain
	rules []rule
}

type rule struct {
	about string
	exprs []expr.Any
}

// newRuleset says what the table should be. No two ports collide. Forwarding
// stays off between the closed links.
func newRuleset(networks []Network, ports []Port, closed []string) ruleset {
	r := ruleset{table: &nftables.Table{Name: tableName, Family: nftables.TableFamilyIPv4}}

	link, address := nftables.TypeIFName, nftables.TypeIPAddr
	number, service := nftables.TypeInetProto, nftables.TypeInetService
	bridges := r.set("bridges", link)
	within := r.set("within", link, link)
	shut := r.set("closed", link)
	published := r.mapping("published", number, service)
	publishedAt := r.mapping("published_at", address, number, service)
	for _, w := range networks {
		bridges.add(ifname(w.Bridge), nil)
		within.add(slices.Concat(ifname(w.Bridge), ifname(w.Bridge)), nil)
	}
	for _, name := range closed {
		shut.add(ifname(name), nil)
	}
	for _, p := range ports {
		listener := slices.Concat([]byte{p.protocol(), 0, 0, 0}, padded(p.HostPort))
		target := slices.Concat(p.Address.AsSlice(), padded(p.ContainerPort))
		if p.anywhere() {
			published.add(listener, target)
		} else {
			publishedAt.add(slices.Concat(p.HostIP.AsSlice(), listener), target)
		}
	}

	toPublished := []rule{
		newRule("ports published on one address",
			toHost(), load(destination, 1), load(protocol, 9), load(port, 10), found(publishedAt), toFound()),
		newRule("ports published on every address",
			toHost(), load(protocol, 1), load(port, 9), found(published), toFound()),
	}
	r.chain("raw", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, 0,
		newRule("containers stay out of the host's loopback",
			load(incoming, 1), in(bridges), load(destination, 1), isIn(loopback()), drop()))
	r.chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, 5,
		slices.Concat([]rule{
			newRule("neighbours stay out of the host's loopback",
				load(destination, 1), isIn(loopback()), leave()),
		}, toPublished)...)
	r.chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest, 5,
		toPublished...)
	r.chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter, 10,
		newRule("forwarding was off between these",
			load(incoming, 1), in(shut), load(outgoing, 1), in(shut), drop()),
		newRule("not to a container",
			load(outgoing, 1), notIn(bridges), accept()),
		newRule("answers", answers(), accept()),
		newRule("published ports", translated(), accept()),
		newRule("within one network",
			load(incoming, 1), load(outgoing, 2), in(within), accept()),
		newRule("nobody else reaches a container", drop()))
	outbound := []rule{
		newRule("the host reaches published ports by 127.0.0.1",
			load(source, 1), isIn(loopback()), load(outgoing, 1), in(bridges), masquerade()),
	}
	for _, w := range networks {
		outbound = append(outbound,
			newRule("leaving the host",
				load(source, 1), isIn(w.Subnet), load(outgoing, 1), notIn(bridges), masquerade()),
			newRule("by a published port back into the same network",
				load(source, 1), isIn(w.Subnet), load(outgoing, 1), equals(ifname(w.Bridge)), translated(), masquerade()))
	}
	r.chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, 5,
		outbound...)
	return r
}

// empty says that the table would do nothing at all.
func (r ruleset) empty() bool {
	return !slices.ContainsFunc(r.sets, func(s *set) bool { return len(s.elements) > 0 })
}

func (r *ruleset) set(name string, key ...nftables.SetDatatype) *set {
	s := &set{Set: &nftables.Set{
		Table: r.table, Name: name,
		ID:      uint32(len(r.sets) + 1), // the package would take it from a variable that is not guarded
		KeyType: nftables.MustConcatSetType(key...), Concatenation: len(key) > 1,
		KeyByteOrder: binaryutil.NativeEndian, // of names, which nft would show empty otherwise
	}}
	r.sets = append(r.sets, s)
	return s
}

// mapping is a set that leads to the port of a container.
func (r *ruleset) mapping(name string, key ...nftables.SetDatatype) *set {
	s := r.set(name, key...)
	s.IsMap = true
	s.DataType = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	return s
}

func (s *set) add(key, value []byte) {
	s.elements = append(s.elements, nftables.SetElement{Key: key, Val: value})
}

func (r *ruleset) chain(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority, later nftables.ChainPriority, rules ...rule) {
	policy := nftables.ChainPolicyAccept
	r.chains = append(r.chains, chain{Chain: &nftables.Chain{
		Table: r.table, Name: name, Type: kind, Hooknum: hook,
		Priority: nftables.ChainPriorityRef(*priority + later), Policy: &policy,
	}, rules: rules})
}

func newRule(about string, clauses ...clause) rule {
	return rule{about: about, exprs: slices.Concat(clauses...)}
}

// note goes with each rule into the kernel, as its comment: what the rule is
// for, and a digest of what it is, by which one of another release is told
// from today's.
func (c chain) note(r rule) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, c.Name, c.Type, *c.Hooknum, *c.Priority)
	for _, e := range r.exprs {
		encoded, err := expr.Marshal(byte(nftables.TableFamilyIPv4), e)
		if err != nil {
			return "", fmt.Errorf("cannot encode rule %q: %w", r.about, err)
		}
		sum.Write(encoded)
	}
	return fmt.Sprintf("%s [%x]", r.about, sum.Sum(nil)[:4]), nil
}

// write replaces the whole table in one transaction.
func (r ruleset) write(conn *nftables.Conn) error {
	r.remove(conn)
	conn.AddTable(r.table)
	for _, s := range r.sets {
		if err := conn.AddSet(s.Set, nil); err != nil {
			return err
		}
		if err := s.fill(conn); err != nil {
			return err
		}
	}
	for _, c := range r.chains {
		conn.AddChain(c.Chain)
		for _, rule := range c.rules {
			note, err := c.note(rule)
			if err != nil {
				return err
			}
			conn.AddRule(&nftables.Rule{
				Table: r.table, Chain: c.Chain, Exprs: rule.exprs,
				UserData: userdata.AppendString(nil, userdata.TypeComment, note),
			})
		}
	}
	return conn.Flush()
}

// refill replaces what is in these sets in one transaction. That is far
// cheaper for the kernel than to replace the table.
func refill(conn *nftables.Conn, sets []*set) error {
	for _, s := range sets {
		conn.FlushSet(s.Set)
		if err := s.fill(conn); err != nil {
			return err
		}
	}
	return conn.Flush()
}

// elementsPerMessage keeps the list within one netlink attribute, of 64 KiB.
const elementsPerMessage = 256

func (s *set) fill(conn *nftables.Conn) error {
	for part := range slices.Chunk(s.elements, elementsPerMessage) {
		if err := conn.SetAddElements(s.Set, part); err != nil {
			return err
		}
	}
	return nil
}

// remove is part of a transaction. What may not be there has to be added
// before it can be deleted.
func (r ruleset) remove(conn *nftables.Conn) {
	conn.AddTable(r.table)
	conn.DelTable(r.table)
}

// hasRules says whether the kernel's table has just these rules. One that
// cannot be read has not.
func (r ruleset) hasRules(conn *nftables.Conn) bool {
	for _, c := range r.chains {
		now, err := conn.GetRules(r.table, c.Chain)
		if err != nil || len(now) != len(c.rules) {
			return false
		}
		for i, rule := range c.rules {
			note, _ := userdata.GetString(now[i].UserData, userdata.TypeComment)
			if want, err := c.note(rule); err != nil || note != want {
				return false
			}
		}
	}
	return true
}

// differing are the sets that the kernel has with other elements.
func (r ruleset) differing(conn *nftables.Conn) ([]*set, error) {
	var found []*set
	for _, s := range r.sets {
		now, err := conn.GetSetElements(s.Set)
		if err != nil {
			return nil, fmt.Errorf("cannot list set %s: %w", s.Name, err)
		}
		if !sameElements(now, s.elements) {
			found = append(found, s)
		}
	}
	return found, nil
}

func sameElements(a, b []nftables.SetElement) bool {
	compare := func(x, y nftables.SetElement) int {
		return cmp.Or(bytes.Compare(x.Key, y.Key), bytes.Compare(x.Val, y.Val))
	}
	a, b = slices.SortedFunc(slices.Values(a), compare), slices.SortedFunc(slices.Values(b), compare)
	return slices.EqualFunc(a, b, func(x, y nftables.SetElement) bool { return compare(x, y) == 0 })
}

// openTables connects to nf_tables of the calling thread's network namespace.
func openTables() (*nftables.Conn, error) {
	// Room for a transaction of maxPorts ports; the default is what the
	// distribution made it.
	room := func(c *netlink.Conn) error { return c.SetWriteBuffer(1 << 20) }
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(room))
	if err != nil {
		return nil, fmt.Errorf("cannot open nf_tables: %w", err)
	}
	return conn, nil
}

// loopback is what never leaves the host.
func loopback() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8) }
