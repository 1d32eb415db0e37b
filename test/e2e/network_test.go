package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

func tables() []*nftables.Table {
	c, err := nftables.New()
	if err != nil {
		return nil
	}
	all, _ := c.ListTables()
	return slices.DeleteFunc(all, func(t *nftables.Table) bool { return !strings.HasPrefix(t.Name, "margolite") })
}

// removeNetwork forgets links and rules, as a reboot does.
func removeNetwork(t *testing.T) {
	t.Helper()
	links, _ := netlink.LinkList()
	for _, l := range links {
		if l.Type() == "bridge" || l.Type() == "veth" {
			netlink.LinkDel(l)
		}
	}
	c, err := nftables.New()
	check(t, err)
	for _, table := range tables() {
		c.DelTable(table)
	}
	check(t, c.Flush())
}
