package network

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Problem is something that the host lacks.
type Problem struct {
	What string
	Mend string // how to fix it
}

// Check tries in a temporary network namespace what the package needs of the kernel.
func Check(ctx context.Context) []Problem {
	if ctx.Err() != nil {
		return nil
	}
	var problems []Problem
	lacks := func(err error, what, mend string) bool {
		if err != nil {
			problems = append(problems, Problem{What: fmt.Sprintf("%s: %v", what, err), Mend: mend})
		}
		return err != nil
	}
	if os.Geteuid() != 0 {
		return []Problem{{What: "networks require root", Mend: "run as root, or give the service CAP_NET_ADMIN and CAP_SYS_ADMIN"}}
	}
	if on, err := ipv4().isForwarding(); !lacks(err, "forwarding of packets", "make /proc/sys readable") && !on {
		lacks(unix.Access("/proc/sys/"+ipv4().forwarding, unix.W_OK), "cannot enable forwarding", "set net.ipv4.ip_forward=1, or make /proc/sys writable")
	}
	_ = onOwnThread(func() error {
		err := unix.Unshare(unix.CLONE_NEWNET)
		if lacks(err, "network namespaces", "build the kernel with CONFIG_NET_NS") {
			return nil
		}
		lacks(tryLink(&netlink.Bridge{LinkAttrs: linkAttrs(trialLink)}), "bridges", "load the module bridge, or build the kernel with CONFIG_BRIDGE (kmod-bridge)")
		lacks(tryLink(&netlink.Veth{LinkAttrs: linkAttrs(trialLink), PeerName: "margolite1"}), "veth pairs", "load the module veth, or build the kernel with CONFIG_VETH (kmod-veth)")
		for _, t := range trials() {
			if lacks(t.run(), t.what, t.mend) && t.basic {
				return nil
			}
		}
		return nil
	})
	return problems
}

const trialLink = "margolite0"

func tryLink(link netlink.Link) error {
	return withLinks(func(c *netlink.Handle) error {
		if err := c.LinkAdd(link); err != nil {
			return err
		}
		return removeLink(c, link)
	})
}

// trial is a table that needs one more part of nf_tables than those before it.
type trial struct {
	what, mend string
	basic      bool // nothing after it works without it
	rules      ruleset
}

func trials() []trial {
	o := owner{id: "00000000", dir: "/"}
	gateway := netip.AddrFrom4([4]byte{192, 0, 2, 1})
	network := Network{Bridge: o.bridgeName("trial"), Subnet: netip.PrefixFrom(gateway, subnetBits).Masked(), Gateway: gateway}
	ports := []Port{{Protocol: "tcp", HostPort: 1, ContainerPort: 1, Address: gateway.Next()}}
	table := tableKey{nftables.TableFamilyIPv4, tableName}
	filter, nat := nftables.ChainTypeFilter, nftables.ChainTypeNAT
	return []trial{
		{"nf_tables", "build the kernel with CONFIG_NF_TABLES and CONFIG_NF_TABLES_IPV4 (kmod-nft-core)", true, single(filter, drop())},
		{"connection tracking in nf_tables", "build the kernel with CONFIG_NF_CONNTRACK and CONFIG_NFT_CT (kmod-nft-core)", false, single(filter, answers())},
		{"address translation in nf_tables", "build the kernel with CONFIG_NFT_NAT (kmod-nft-nat)", true, single(nat, leave())},
		{"masquerading in nf_tables", "build the kernel with CONFIG_NFT_MASQ (kmod-nft-nat)", true, single(nat, masquerade())},
		{"address types in nf_tables", "build the kernel with CONFIG_NFT_FIB_IPV4 (kmod-nft-fib)", true, single(nat, toHost())},
		{"maps in nf_tables", "use a newer kernel", true, newRuleset(ipv4(), table, o, []Network{network}, ports, hostForwarding{}, unguarded)},
		{"copies of packets in nf_tables", "build the kernel with CONFIG_NFT_DUP_IPV4 and CONFIG_NF_CONNTRACK_ZONES (kmod-nft-dup-inet)", false, newRuleset(ipv4(), table, o, []Network{network}, ports, hostForwarding{}, guarded)},
	}
}

func single(kind nftables.ChainType, c clause) ruleset {
	r := ruleset{family: ipv4(), table: tableKey{nftables.TableFamilyIPv4, tableName}}
	r.chain("trial", kind, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource, newRule("trial", c))
	return r
}

func (t trial) run() error {
	conn := newRules()
	// A kernel without nf_tables answers a transaction once; the library waits for more answers.
	if _, err := listTables(conn); err != nil {
		return err
	}
	return t.rules.write(conn)
}
