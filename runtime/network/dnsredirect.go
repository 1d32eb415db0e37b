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
