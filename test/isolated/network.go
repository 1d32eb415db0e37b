package isolated

import (
	"strings"

	"github.com/margolite/margolite/runtime/network/nft"
	"github.com/margolite/margolite/runtime/network/rtnetlink"
)

// ForgetNetwork removes the links and rules that the agent made in this network
// namespace, as a reboot does.
func ForgetNetwork() error {
	links, err := rtnetlink.Open()
	if err != nil {
		return err
	}
	defer links.Close()
	all, err := links.Links()
	if err != nil {
		return err
	}
	for _, l := range all {
		if l.Kind == rtnetlink.Bridge || l.Kind == rtnetlink.Veth {
			_ = links.RemoveLink(l.Index) // it may have gone with its other end
		}
	}
	rules, err := nft.Open()
	if err != nil {
		return err
	}
	defer rules.Close()
	tables, err := rules.Tables(0)
	if err != nil {
		return err
	}
	var b nft.Batch
	for _, table := range tables {
		if strings.HasPrefix(table.Name, "margolite") {
			b.RemoveTable(table)
		}
	}
	return rules.Commit(&b)
}
