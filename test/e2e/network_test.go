package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// networkLeft names the links and rules that are not the machine's own.
func networkLeft() []error {
	var left []error
	links, _ := netlink.LinkList()
	for _, l := range links {
		if l.Type() == "bridge" || l.Type() == "veth" {
			left = append(left, fmt.Errorf("link %s", l.Attrs().Name))
		}
	}
	for _, table := range tables() {
		left = append(left, fmt.Errorf("table %s", table.Name))
	}
	return left
}

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
