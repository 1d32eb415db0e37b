package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
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
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("cannot open nf_tables: %w", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: dnsTable}
	conn.AddTable(table) // to have it removed without an error
	conn.DelTable(table)
	conn.AddTable(table)
	chain := conn.AddChain(&nftables.Chain{
		Name: "output", Table: table,
		Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest,
	})
	for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: dnsAddress.AsSlice()},
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, dnsPort)},
			&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
			&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, to.Port())},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
		}})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("cannot write table %s: %w", dnsTable, err)
	}
	return nil
}
