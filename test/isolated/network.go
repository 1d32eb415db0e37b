package isolated

import (
	"errors"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// ForgetNetwork removes the links and rules that the agent made in this network
// namespace, as a reboot does.
func ForgetNetwork() error {
	links, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // one changed meanwhile
		links, err = netlink.LinkList()
	}
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Type() == "bridge" || l.Type() == "veth" {
			_ = netlink.LinkDel(l) // it may have gone with its other end
		}
	}
	var rules nftables.Conn
	tables, err := rules.ListTables()
	if err != nil {
		return err
	}
	for _, table := range tables {
		if strings.HasPrefix(table.Name, "margolite") {
			rules.DelTable(table)
		}
	}
	return rules.Flush()
}
