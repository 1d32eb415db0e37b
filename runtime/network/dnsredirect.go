package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/nft"
)

// dnsAddress is where programs in a sandbox ask for names, as in Docker.
var dnsAddress = netip.AddrFrom4([4]byte{127, 0, 0, 11})

const (
	dnsPort = 53

	// The ports of the sockets are out of the range from which the kernel takes
	// those of outgoing connections. The first one is free, as a rule: then
	// nothing changes in a sandbox when an agent takes over from another.
	firstPort    = uint16(61053)
	maxPortTries = 10

	dnsTable = "margolite-dns"
)

// redirect sends what is for port 53 of dnsAddress to the sockets, in the network
// namespace of this thread, in one transaction. Where nobody has these open, the
// sender is told so at once.
func redirect(to netip.AddrPort) error {
	conn, err := nft.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	var b nft.Batch
	table := nft.Table{Family: nft.IPv4, Name: dnsTable}
	b.AddTable(table) // to have it removed without an error
	b.RemoveTable(table)
	b.AddTable(table)
	chain := nft.Chain{
		Table: table, Name: "output",
		Base: &nft.Base{Type: nft.ChainNAT, Hook: unix.NF_INET_LOCAL_OUT, Priority: nft.PriorityDNAT, Policy: nft.Accept},
	}
	b.AddChain(chain)
	f := ipv4()
	for _, number := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		b.AddRule(chain, nft.Rule{Exprs: slices.Concat(
			f.load(destination), equals(dnsAddress.AsSlice()),
			f.load(protocol), equals([]byte{number}),
			f.load(port), equals(binary.BigEndian.AppendUint16(nil, dnsPort)),
			clause{
				nft.Immediate(1, to.Addr().AsSlice()),
				nft.Immediate(2, binary.BigEndian.AppendUint16(nil, to.Port())),
				nft.TranslateTo(f.table, 1, 2),
			},
		)})
	}
	if err := conn.Commit(&b); err != nil {
		return fmt.Errorf("cannot write table %s: %w", dnsTable, err)
	}
	return nil
}
