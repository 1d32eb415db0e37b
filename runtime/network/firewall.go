package network

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/nft"
)

// firewall is what other tables than ours do with packets, as far as it can be
// told without running one through them.
type firewall struct {
	conn   *nft.Conn
	chains []nft.Chain
}

func readFirewall(conn *nft.Conn) (firewall, error) {
	chains, err := conn.Chains()
	if err != nil {
		return firewall{}, fmt.Errorf("cannot list chains: %w", err)
	}
	return firewall{conn, chains}, nil
}

// openFirewall reads it through a connection of its own, which the caller closes.
func openFirewall(ctx context.Context) (firewall, error) {
	if err := ctx.Err(); err != nil {
		return firewall{}, err
	}
	conn, err := nft.Open()
	if err != nil {
		return firewall{}, err
	}
	w, err := readFirewall(conn)
	if err != nil {
		conn.Close()
	}
	return w, err
}

// bases are the chains of others through which packets of the family come at
// the hook.
func (w firewall) bases(f *family, hook uint32) []nft.Chain {
	var found []nft.Chain
	for _, c := range w.chains {
		family := c.Table.Family == f.table || c.Table.Family == nft.Inet
		if family && !isOurTable(c.Table) && c.Base != nil && c.Base.Hook == hook && c.Base.Type == nft.ChainFilter {
			found = append(found, c)
		}
	}
	return found
}

func drops(c nft.Chain) bool { return c.Base != nil && c.Base.Policy == nft.Drop }

// reaches says whether something holds for a rule of the chain or of those to
// which it leads, but for those that only some rules lead to, follow has to
// agree. Chains are looked at once.
func (w firewall) reaches(c nft.Chain, follow, holds func(r nft.Rule) bool, seen map[string]bool) (bool, error) {
	if seen[c.Name] {
		return false, nil
	}
	seen[c.Name] = true
	rules, err := w.conn.Rules(c)
	if err != nil {
		return false, fmt.Errorf("cannot list rules of chain %s: %w", c.Name, err)
	}
	for _, r := range rules {
		if holds(r) {
			return true, nil
		}
		to := target(r)
		if to == "" || !follow(r) {
			continue
		}
		next := slices.IndexFunc(w.chains, func(o nft.Chain) bool {
			return o.Name == to && o.Table == c.Table
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

// target is the chain that a rule leads to.
func target(r nft.Rule) string {
	for _, e := range r.Exprs {
		if code, chain, ok := e.Verdict(); ok && (code == nft.Jump || code == nft.Goto) {
			return chain
		}
	}
	return ""
}

// refuses says whether the rule may end a packet. What it does by a map of
// verdicts or by a part of iptables is not looked into.
func refuses(r nft.Rule) bool {
	return slices.ContainsFunc(r.Exprs, func(e nft.Expr) bool {
		switch e.Name() {
		case "immediate":
			code, _, ok := e.Verdict()
			return ok && (code == nft.Drop || code == nft.Queue)
		case "lookup":
			return e.LooksUpVerdict()
		case "reject", "target", "queue", "synproxy":
			return true
		}
		return false
	})
}

// always says whether the rule is for every packet.
func always(r nft.Rule) bool {
	return !slices.ContainsFunc(r.Exprs, func(e nft.Expr) bool {
		switch e.Name() {
		case "immediate":
			_, _, ok := e.Verdict()
			return !ok
		case "reject", "target", "counter", "last", "log":
			return false
		}
		return true
	})
}

// guardFor says how published ports have to be guarded. Where the rules of the
// host cannot be read, they are taken to refuse something.
func (n *Networks) guardFor(f *family, w firewall) guarding {
	switch {
	case n.publish == PublishOpen:
		return unguarded
	case hasLegacyRules(f):
		return guardedBriefly
	}
	every := func(nft.Rule) bool { return true }
	for _, c := range w.bases(f, unix.NF_INET_LOCAL_IN) {
		refused, err := w.reaches(c, every, refuses, make(map[string]bool))
		if drops(c) || refused || err != nil {
			return guarded
		}
	}
	return unguarded
}

// hasLegacyRules says whether the older iptables filters packets: its rules are
// not seen by way of nf_tables, nor are its changes told.
func hasLegacyRules(f *family) bool {
	path := "/proc/thread-self/net/ip_tables_names"
	if f.table == nft.IPv6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	names, err := os.ReadFile(path)
	return err == nil && slices.ContainsFunc(strings.Fields(string(names)), func(table string) bool {
		return table == "filter" || table == "mangle" || table == "security"
	})
}

// closes says whether the chain passes on nothing but what it knows.
func (w firewall) closes(c nft.Chain) (bool, error) {
	if drops(c) {
		return true, nil
	}
	return w.reaches(c, always, func(r nft.Rule) bool { return always(r) && refuses(r) }, make(map[string]bool))
}

// knowsUs says whether a rule behind the chain speaks of our bridges, or of the
// subnets of the pools.
func (w firewall) knowsUs(c nft.Chain, pools []netip.Prefix) (bool, error) {
	every := func(nft.Rule) bool { return true }
	return w.reaches(c, every, func(r nft.Rule) bool {
		address := false
		for _, e := range r.Exprs {
			if network, ok := e.LoadsHeader(); ok {
				address = network
			}
			if value := e.Compared(); bytes.HasPrefix(value, []byte(bridgePrefix)) || address && inPools(value, pools) {
				return true
			}
		}
		return false
	}, make(map[string]bool))
}

// inPools says whether these are the first bytes of an address of the pools.
func inPools(data []byte, pools []netip.Prefix) bool {
	return len(data) >= 2 && slices.ContainsFunc(pools, func(p netip.Prefix) bool {
		whole := append(slices.Clone(data), make([]byte, max(0, p.Addr().BitLen()/8-len(data)))...)
		a, ok := netip.AddrFromSlice(whole)
		return ok && p.Masked().Contains(a)
	})
}
