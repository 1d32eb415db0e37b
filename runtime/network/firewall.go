package network

import (
	"bytes"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// firewall is what all tables, ours and others', do with packets, judged by their rules.
type firewall struct {
	conn   *nftables.Conn
	chains []*nftables.Chain
	tables []tableKey // that a margolite may have made
	// By the chain named after the owner: a table's name proves nothing. The directory is unset.
	owners map[tableKey]owner
}

func readFirewall() (firewall, error) {
	w := firewall{conn: newRules(), owners: make(map[tableKey]owner)}
	all, err := listTables(w.conn)
	if err != nil {
		return w, err
	}
	w.tables = slices.DeleteFunc(all, func(t tableKey) bool { return !isRulesTable(t) })
	w.chains, err = listed("chains", w.conn.ListChains)
	for _, c := range w.chains {
		if id, ok := strings.CutPrefix(c.Name, ownerChain); ok && slices.Contains(w.tables, keyOf(c.Table)) {
			w.owners[keyOf(c.Table)] = owner{id: id}
		}
	}
	return w, err
}

// bases returns the chains of others that packets of the family pass at the hook.
func (w firewall) bases(f *family, hook *nftables.ChainHook) []*nftables.Chain {
	var found []*nftables.Chain
	for _, c := range w.chains {
		family := c.Table.Family == f.table || c.Table.Family == nftables.TableFamilyINet
		ours := isRulesTable(tableKey{c.Table.Family, strings.TrimSuffix(c.Table.Name, aliveSuffix)})
		if family && !ours && c.Hooknum != nil && *c.Hooknum == *hook && c.Type == nftables.ChainTypeFilter {
			found = append(found, c)
		}
	}
	return found
}

func drops(c *nftables.Chain) bool { return c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop }

// reaches reports whether holds is true for a rule of the chain, or behind rules that follow.
func (w firewall) reaches(c *nftables.Chain, follow, holds func(r *nftables.Rule) bool, seen map[string]bool) (bool, error) {
	if seen[c.Name] {
		return false, nil
	}
	seen[c.Name] = true
	rules, err := rulesOf(w.conn, c)
	if err != nil {
		return false, err
	}
	for _, r := range rules {
		if holds(r) {
			return true, nil
		}
		to := target(r)
		if to == "" || !follow(r) {
			continue
		}
		next := slices.IndexFunc(w.chains, func(o *nftables.Chain) bool {
			return o.Name == to && keyOf(o.Table) == keyOf(c.Table)
		})
		if next < 0 {
			continue
		}
		if found, err := w.reaches(w.chains[next], follow, holds, seen); found || err != nil {
			return found, err
		}
	}
	return false, nil
}

// target returns the chain that a rule jumps to; "": none.
func target(r *nftables.Rule) string {
	for _, e := range r.Exprs {
		if v, ok := e.(*expr.Verdict); ok && (v.Kind == expr.VerdictJump || v.Kind == expr.VerdictGoto) {
			return v.Chain
		}
	}
	return ""
}

// refuses reports whether the rule may end a packet; verdict maps and parts of iptables may.
func refuses(r *nftables.Rule) bool {
	return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		switch e := e.(type) {
		case *expr.Verdict:
			return e.Kind == expr.VerdictDrop || e.Kind == expr.VerdictQueue
		case *expr.Lookup:
			return e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT
		case *expr.Reject, *expr.Target, *expr.Queue, *expr.SynProxy:
			return true
		}
		return false
	})
}

// always reports whether the rule applies to every packet. The library leaves out
// expressions it does not know; these compare nothing by themselves.
func always(r *nftables.Rule) bool {
	return !slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		switch e.(type) {
		case *expr.Verdict, *expr.Reject, *expr.Target, *expr.Counter, *expr.Log:
			return false
		}
		return true
	})
}

// guardFor says whether to guard published ports; unreadable host rules count as refusing.
func (n *Networks) guardFor(f *family, w firewall) guarding {
	switch {
	case n.publish == PublishOpen:
		return unguarded
	case hasLegacyRules(f):
		return guarded
	}
	every := func(*nftables.Rule) bool { return true }
	for _, c := range w.bases(f, nftables.ChainHookInput) {
		refused, err := w.reaches(c, every, refuses, make(map[string]bool))
		if drops(c) || refused || err != nil {
			return guarded
		}
	}
	return unguarded
}

// hasLegacyRules reports whether the older iptables, invisible to nf_tables, filters packets.
func hasLegacyRules(f *family) bool {
	path := "/proc/thread-self/net/ip_tables_names"
	if f.table == nftables.TableFamilyIPv6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	names, err := os.ReadFile(path)
	return err == nil && slices.ContainsFunc(strings.Fields(string(names)), func(table string) bool {
		return table == "filter" || table == "mangle" || table == "security"
	})
}

func legacyRules() (has [2]bool) {
	for i, f := range families() {
		has[i] = hasLegacyRules(f)
	}
	return has
}

// closes reports whether the chain drops whatever it does not explicitly accept.
func (w firewall) closes(c *nftables.Chain) (bool, error) {
	if drops(c) {
		return true, nil
	}
	return w.reaches(c, always, func(r *nftables.Rule) bool { return always(r) && refuses(r) }, make(map[string]bool))
}

// knowsUs reports whether a rule behind the chain mentions our bridges or subnets.
func (w firewall) knowsUs(c *nftables.Chain, pools []netip.Prefix) (bool, error) {
	every := func(*nftables.Rule) bool { return true }
	return w.reaches(c, every, func(r *nftables.Rule) bool {
		address := false
		for _, e := range r.Exprs {
			switch e := e.(type) {
			case *expr.Payload:
				address = e.Base == expr.PayloadBaseNetworkHeader
			case *expr.Cmp:
				if bytes.HasPrefix(e.Data, []byte(bridgePrefix)) || address && inPools(e.Data, pools) {
					return true
				}
			}
		}
		return false
	}, make(map[string]bool))
}

// inPools reports whether data are the first bytes of an address in the pools.
func inPools(data []byte, pools []netip.Prefix) bool {
	return len(data) >= 2 && slices.ContainsFunc(pools, func(p netip.Prefix) bool {
		whole := append(slices.Clone(data), make([]byte, max(0, p.Addr().BitLen()/8-len(data)))...)
		a, ok := netip.AddrFromSlice(whole)
		return ok && p.Masked().Contains(a)
	})
}
