package network

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
)

// The table, for one network and one port, as nft shows it:
//
//	set bridges      { type ifname;           elements = { "mgl-a" } }
//	set internal     { type ifname }
//	set within       { type ifname . ifname;  elements = { "mgl-a" . "mgl-a" } }
//	set passing      { type ifname . ifname }
//	map published    { type inet_proto . inet_service : ipv4_addr . inet_service
//	                   elements = { tcp . 8080 : 172.29.0.2 . 80 } }
//	map published_at { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//
//	chain owner_1a2b3c4d { return comment "rules for workloads of /var/lib/margolite" }
//	chain raw         { type filter hook prerouting priority raw
//	                    iifname @bridges ip daddr 127.0.0.0/8 drop }
//	chain translate   { fib daddr type local dnat to ip daddr . meta l4proto . th dport map @published_at
//	                    fib daddr type local dnat to meta l4proto . th dport map @published }
//	chain prerouting  { type nat hook prerouting priority dstnat + 5
//	                    ip daddr 127.0.0.0/8 return
//	                    jump translate }
//	chain output      { type nat hook output priority dstnat + 5
//	                    jump translate }
//	chain forward     { type filter hook forward priority filter + 10
//	                    iifname @internal iifname . oifname != @within drop
//	                    oifname @internal iifname . oifname != @within drop
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
// If the host's firewall may refuse what comes in, ports are guarded:
//
//	chain prerouting  { ... instead of jump translate
//	                    iifname @bridges jump translate }
//	chain admit       { dup to ip daddr
//	                    drop }
//	chain input       { type filter hook input priority 1000
//	                    iifname "lo" accept
//	                    iifname @bridges accept
//	                    ct state new ct status ! dnat fib daddr type local, in @published_at: jump admit
//	                    ct state new ct status ! dnat fib daddr type local, in @published: jump admit }
//	chain track       { type filter hook output priority raw - 1
//	                    oifname "lo" ct state untracked ct zone set 0 }
//
// If forwarding was switched on for containers, the chain forward begins with
//
//	iifname != "mgl-*" oifname != "mgl-*" iifname . oifname != @passing drop
//
// The table ip6 margolite is the same for IPv6, and exists while a network has IPv6.
//
// The chains come after the host's at the standard priorities: the host's translations win, and
// what it refuses never gets here. Accepting here does not override another table's drop. If
// another owner has the table of this name, ours is margolite-1a2b3c4d. The families are ip and
// ip6 because nat in the family inet needs Linux 5.2.
const tableName = "margolite"

// lastInput comes after everything else that looks at packets for the host.
const lastInput = 1000

// ruleset is a whole table, to be written to the kernel or compared with the kernel's.
type ruleset struct {
	family   *family
	table    tableKey
	guarding guarding
	host     hostForwarding
	sets     []*set
	chains   []chain
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
	exprs clause
}

// guarding says whether packets must pass the host's firewall before they go to a container.
type guarding int

const (
	unguarded guarding = iota
	guarded
	shut // the kernel cannot do that: ports are published for the host and containers only
)

// newRuleset builds the table of a family. No two ports may collide.
func newRuleset(f *family, table tableKey, o owner, networks []Network, ports []Port, host hostForwarding, guard guarding) ruleset {
	r := ruleset{family: f, guarding: guard, host: host, table: table}
	networks = f.of(networks)

	r.subchain(ownerChain+o.id, newRule(ownerAbout+o.dir, leave()))
	link, address := nftables.TypeIFName, f.address
	number, service := nftables.TypeInetProto, nftables.TypeInetService
	bridges := r.set("bridges", link)
	internal := r.set("internal", link)
	within := r.set("within", link, link)
	passing := r.set("passing", link, link)
	published := r.mapping("published", number, service)
	publishedAt := r.mapping("published_at", address, number, service)
	for _, w := range networks {
		bridges.add(ifname(w.Bridge), nil)
		if w.Internal {
			internal.add(ifname(w.Bridge), nil)
		}
		if !w.Apart {
			within.add(slices.Concat(ifname(w.Bridge), ifname(w.Bridge)), nil)
		}
	}
	for _, links := range host.passing {
		passing.add(slices.Concat(ifname(links[0]), ifname(links[1])), nil)
	}
	for _, p := range ports {
		if !f.has(p.Address) {
			continue
		}
		listener := slices.Concat([]byte{p.protocol(), 0, 0, 0}, padded(p.HostPort))
		target := slices.Concat(p.Address.AsSlice(), padded(p.ContainerPort))
		if p.anywhere() {
			published.add(listener, target)
		} else {
			publishedAt.add(slices.Concat(p.HostIP.AsSlice(), listener), target)
		}
	}

	r.chain("raw", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw,
		newRule("containers stay out of the host's loopback",
			f.load(incoming), in(bridges), f.load(destination), isIn(f.loopback), drop()))
	r.subchain("translate",
		newRule("ports published on one address",
			toHost(), f.load(destination, protocol, destinationPort), found(publishedAt), f.toFound()),
		newRule("ports published on every address",
			toHost(), f.load(protocol, destinationPort), found(published), f.toFound()))
	translate := []rule{newRule("published ports", run("translate"))}
	loopback := newRule("neighbours stay out of the host's loopback",
		f.load(destination), isIn(f.loopback), leave())
	if guard != unguarded {
		translate = r.guard(f, guard, bridges, published, publishedAt)
	}
	r.chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest+5,
		append([]rule{loopback}, translate...)...)
	var own []rule
	if f.table == nftables.TableFamilyIPv6 {
		// Nothing leaves the host from ::1, even after a translation.
		own = append(own, newRule("the host's loopback stays its own",
			f.load(destination), isIn(f.loopback), leave()))
	}
	own = append(own, newRule("published ports", run("translate")))
	r.chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, *nftables.ChainPriorityNATDest+5, own...)
	var closed []rule
	if host.closed {
		// Leave the bridges of other margolites to them.
		foreign := clause{compare(expr.CmpOpNeq, []byte(bridgePrefix))}
		closed = []rule{newRule("forwarding was switched on for containers",
			f.load(incoming), foreign, f.load(outgoing), foreign, f.load(incoming, outgoing), notIn(passing), drop())}
	}
	r.chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, *nftables.ChainPriorityFilter+10,
		append(closed,
			newRule("an internal network has no way out",
				f.load(incoming), in(internal), f.load(incoming, outgoing), notIn(within), drop()),
			newRule("and no way in",
				f.load(outgoing), in(internal), f.load(incoming, outgoing), notIn(within), drop()),
			newRule("not to a container",
				f.load(outgoing), notIn(bridges), accept()),
			newRule("answers", answers(), accept()),
			newRule("published ports", translated(), accept()),
			newRule("within one network",
				f.load(incoming, outgoing), in(within), accept()),
			newRule("nobody else reaches a container", drop()))...)
	outbound := []rule{
		newRule("the host reaches published ports by its loopback",
			f.load(source), isIn(f.loopback), f.load(outgoing), in(bridges), masquerade()),
	}
	for _, w := range networks {
		subnet := f.subnet(w)
		if !w.Unmasked && !w.Internal {
			outbound = append(outbound, newRule("leaving the host",
				f.load(source), isIn(subnet), f.load(outgoing), notIn(bridges), masquerade()))
		}
		outbound = append(outbound, newRule("by a published port back into the same network",
			f.load(source), isIn(subnet), f.load(outgoing), equals(ifname(w.Bridge)), translated(), masquerade()))
	}
	r.chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource+5,
		outbound...)
	return r
}

// guard adds what admits clients, and returns the rules for packets that need no admission.
// The first packet of any other connection goes where packets for the host go, through the
// host's firewall. After that, a copy is sent as if from the host itself, which translates
// it and all later packets of its connection; the packet itself is dropped. The kernel
// does not track copies unless told to.
func (r *ruleset) guard(f *family, guard guarding, bridges, published, publishedAt *set) []rule {
	containers := []rule{newRule("published ports, for containers", f.load(incoming), in(bridges), run("translate"))}
	if guard == shut {
		return containers
	}
	r.subchain("admit",
		newRule("the host's firewall let it pass", f.load(destination), copied()),
		newRule("the copy goes on", drop()))
	first := func() clause { return slices.Concat(begins(), untranslated(), toHost()) }
	r.chain("input", nftables.ChainTypeFilter, nftables.ChainHookInput, lastInput,
		newRule("the host itself", f.load(incoming), equals(ifname("lo")), accept()),
		newRule("containers", f.load(incoming), in(bridges), accept()),
		newRule("ports published on one address",
			first(), f.load(destination, protocol, destinationPort), found(publishedAt), run("admit")),
		newRule("ports published on every address",
			first(), f.load(protocol, destinationPort), found(published), run("admit")))
	r.chain("track", nftables.ChainTypeFilter, nftables.ChainHookOutput, *nftables.ChainPriorityRaw-1,
		newRule("copies", f.load(outgoing), equals(ifname("lo")), untracked(), track()))
	return containers
}

func (r ruleset) empty() bool {
	return !r.host.closed && !slices.ContainsFunc(r.sets, func(s *set) bool { return len(s.elements) > 0 })
}

func (r *ruleset) set(name string, key ...nftables.SetDatatype) *set {
	s := &set{Set: &nftables.Set{
		Table: r.table.table(), Name: name, ID: uint32(len(r.sets) + 1),
		KeyType: key[0], Concatenation: len(key) > 1,
		KeyByteOrder: binaryutil.NativeEndian, // of link names, for nft, which otherwise shows them empty
	}}
	if s.Concatenation {
		s.KeyType = nftables.MustConcatSetType(key...)
	}
	r.sets = append(r.sets, s)
	return s
}

func (r *ruleset) mapping(name string, key ...nftables.SetDatatype) *set {
	s := r.set(name, key...)
	s.IsMap, s.DataType = true, nftables.MustConcatSetType(r.family.address, nftables.TypeInetService)
	return s
}

func (s *set) add(key, value []byte) {
	s.elements = append(s.elements, nftables.SetElement{Key: key, Val: value})
}

func (r *ruleset) chain(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority, rules ...rule) {
	policy := nftables.ChainPolicyAccept
	r.chains = append(r.chains, chain{Chain: &nftables.Chain{
		Table: r.table.table(), Name: name, Type: kind, Hooknum: hook, Priority: &priority, Policy: &policy,
	}, rules: rules})
}

// subchain adds a chain that others jump to; it must come before them.
func (r *ruleset) subchain(name string, rules ...rule) {
	r.chains = append(r.chains, chain{Chain: &nftables.Chain{Table: r.table.table(), Name: name}, rules: rules})
}

func newRule(about string, clauses ...clause) rule {
	return rule{about: about, exprs: slices.Concat(clauses...)}
}

// note is a rule's comment in the kernel: its purpose, and a digest to notice old releases.
func (c chain) note(r rule) string {
	sum := sha256.New()
	fmt.Fprint(sum, c.Name)
	if c.Hooknum != nil {
		fmt.Fprintln(sum, "", c.Type, *c.Hooknum, *c.Priority)
	}
	for _, e := range r.exprs {
		encoded, err := expr.Marshal(byte(c.Table.Family), e)
		if err != nil {
			panic(err) // a mistake in this package, found by the first test
		}
		sum.Write(encoded)
	}
	note := fmt.Sprintf("%s [%x]", r.about, sum.Sum(nil)[:4])
	return note[:min(len(note), maxComment)]
}

func (r ruleset) write(conn *nftables.Conn) error {
	r.remove(conn)
	conn.AddTable(r.table.table())
	for _, s := range r.sets {
		if err := errors.Join(conn.AddSet(s.Set, nil), addElements(conn, s.Set, s.elements)); err != nil {
			return err
		}
	}
	for _, c := range r.chains {
		conn.AddChain(c.Chain)
		for _, rule := range c.rules {
			conn.AddRule(&nftables.Rule{
				Table: c.Table, Chain: c.Chain, Exprs: rule.exprs,
				UserData: userdata.AppendString(nil, userdata.TypeComment, c.note(rule)),
			})
		}
	}
	return commit(conn)
}

// remove is part of a transaction. It adds what may be missing, so that deleting works.
func (r ruleset) remove(conn *nftables.Conn) {
	conn.AddTable(r.table.table())
	conn.DelTable(r.table.table())
}

// isThere reports whether the kernel has exactly these rules and sets, and they are readable.
func (r ruleset) isThere(conn *nftables.Conn) bool {
	for _, c := range r.chains {
		now, err := rulesOf(conn, c.Chain)
		if err != nil || len(now) != len(c.rules) {
			return false
		}
		for i, rule := range c.rules {
			if commentOf(now[i]) != c.note(rule) {
				return false
			}
		}
	}
	return !slices.ContainsFunc(r.sets, func(s *set) bool {
		now, err := elementsOf(conn, s.Set)
		return err != nil || !sameElements(now, s.elements)
	})
}

func sameElements(a, b []nftables.SetElement) bool {
	contents := func(elements []nftables.SetElement) map[string]string {
		m := make(map[string]string, len(elements))
		for _, e := range elements {
			m[string(e.Key)] = string(e.Val)
		}
		return m
	}
	return maps.Equal(contents(a), contents(b))
}
