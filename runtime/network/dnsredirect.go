package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// dnsAddress is the nameserver of programs in a sandbox, as in Docker.
var dnsAddress = netip.AddrFrom4([4]byte{127, 0, 0, 11})

const (
	dnsPort = 53

	// Ports of the sockets lie outside the kernel's range for outgoing connections. The first
	// is normally free, so that nothing changes in a sandbox when another agent takes over.
	firstPort    = uint16(61053)
	maxPortTries = 10

	dnsTable = "margolite-dns"
)

// redirect sends queries for port 53 of dnsAddress to the sockets, in the thread's network
// namespace, in one transaction. While these are closed, the sender is refused at once.
func redirect(to netip.AddrPort) error {
	f := ipv4()
	r := ruleset{family: f, table: tableKey{f.table, dnsTable}}
	var rules []rule
	for _, number := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		rules = append(rules, newRule("questions for names", f.load(destination), equals(dnsAddress.AsSlice()),
			f.load(protocol), equals([]byte{number}),
			f.load(destinationPort), equals(binary.BigEndian.AppendUint16(nil, dnsPort)),
			clause{
				&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
				&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, to.Port())},
				f.translateTo(1, 2),
			}))
	}
	r.chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, *nftables.ChainPriorityNATDest, rules...)
	if err := r.write(newRules()); err != nil {
		return fmt.Errorf("cannot write table %s: %w", dnsTable, err)
	}
	return nil
}
