package network

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// Advice says which parts of the host's firewall block packets of containers, and how to
// change them: our rules cannot overrule it. It does not look into the older iptables.
func Advice(ctx context.Context) ([]Problem, error) {
	w, err := readFirewall()
	if err = cmp.Or(ctx.Err(), err); err != nil {
		return nil, err
	}
	return w.advice(ipv4(), privatePools())
}

// advice looks at forwarded packets of one family: advice for one serves both.
func (w firewall) advice(f *family, pools []netip.Prefix) ([]Problem, error) {
	var all []Problem
	for _, c := range w.bases(f, nftables.ChainHookForward) {
		closed, err := w.closes(c)
		if err != nil {
			return nil, err
		}
		if !closed {
			continue
		}
		known, err := w.knowsUs(c, pools)
		if err != nil {
			return nil, err
		}
		if !known {
			all = append(all, Problem{
				What: fmt.Sprintf("the firewall drops packets forwarded from and to containers (chain %s of table %s)", c.Name, keyOf(c.Table)),
				Mend: w.mend(c, pools),
			})
		}
	}
	return all, nil
}

// mend says what to do in terms of the program that made the chain.
func (w firewall) mend(c *nftables.Chain, pools []netip.Prefix) string {
	hasChain := func(name string) bool {
		return slices.ContainsFunc(w.chains, func(o *nftables.Chain) bool {
			return o.Name == name && keyOf(o.Table) == keyOf(c.Table)
		})
	}
	iptables := func(chain string) string {
		return "at every start run iptables -I " + chain + " -i mgl-+ -j ACCEPT; iptables -I " + chain +
			" -o mgl-+ -m conntrack --ctstate ESTABLISHED,RELATED,DNAT -j ACCEPT; for IPv6 the same with ip6tables"
	}
	switch {
	case c.Table.Name == "fw4":
		return "copy packaging/openwrt/margolite/files/margolite.nft to /usr/share/nftables.d/chain-pre/forward/ and run fw4 reload"
	case c.Table.Name == "firewalld":
		var sources []string
		for _, p := range pools {
			sources = append(sources, "--add-source="+p.String())
		}
		return "run firewall-cmd --permanent --zone=trusted " + strings.Join(sources, " ") + " and firewall-cmd --reload"
	case hasChain("DOCKER-USER"):
		return iptables("DOCKER-USER")
	case c.Table.Name == "filter" && c.Name == "FORWARD":
		return iptables("FORWARD")
	}
	return fmt.Sprintf(`add to chain %s of table %s, in /etc/nftables.conf as a rule: iifname "mgl-*" accept; `+
		`oifname "mgl-*" ct state established,related accept; oifname "mgl-*" ct status dnat accept`,
		c.Name, keyOf(c.Table))
}
