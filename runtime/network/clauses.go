package network

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// clause is a part of a rule: it loads something into a register, ends the
// rule unless something holds, or says what becomes of the packet.
//
// Registers 1 and 2 have 16 bytes. 8 to 11 are the first to fourth four bytes
// of register 1, so that what is loaded into 1, 9 and 10 makes one long key.
type clause []expr.Any

// field is what can be known of a packet.
type field int

const (
	incoming field = iota // link
	outgoing              // link
	protocol
	source
	destination
	port // destination's
)

func load(f field, register uint32) clause {
	switch f {
	case incoming:
		return clause{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register}}
	case outgoing:
		return clause{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: register}}
	case protocol:
		return clause{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}}
	case source:
		return clause{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}}
	case destination:
		return clause{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}}
	case port:
		return clause{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
	}
	panic("unknown field") // a mistake in this package, found by the first test
}

// in holds when what was loaded into register 1 is in the set.
func in(s *set) clause {
	return clause{&expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID}}
}

func notIn(s *set) clause {
	return clause{&expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID, Invert: true}}
}

// found holds when the map has register 1 for a key, and loads what the key
// leads to.
func found(s *set) clause {
	return clause{&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: s.Name, SetID: s.ID}}
}

func equals(data []byte) clause {
	return clause{&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}}
}

// isIn holds when the address in register 1 is one of the prefix.
func isIn(p netip.Prefix) clause {
	return clause{
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: net.CIDRMask(p.Bits(), 32), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// toHost holds when the packet is for an address of the host.
func toHost() clause {
	return clause{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// answers holds for packets of a connection that was let through before.
func answers() clause {
	return connection(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
}

// translated holds for packets of a connection to a published port.
func translated() clause {
	const destinationNAT = 1 << 5 // IPS_DST_NAT
	return connection(expr.CtKeySTATUS, destinationNAT)
}

// connection holds when the packet's connection has one of the flags.
func connection(key expr.CtKey, flags uint32) clause {
	none := make([]byte, 4)
	return clause{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(flags), Xor: none},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: none},
	}
}

// toFound sends the connection where the map led to.
func toFound() clause {
	return clause{&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 9}}
}

func masquerade() clause { return clause{&expr.Masq{}} }

func accept() clause { return clause{&expr.Verdict{Kind: expr.VerdictAccept}} }

func drop() clause { return clause{&expr.Verdict{Kind: expr.VerdictDrop}} }

// leave ends the chain, with its policy.
func leave() clause { return clause{&expr.Verdict{Kind: expr.VerdictReturn}} }

// ifname is the name of a link as the kernel compares it.
func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b[:unix.IFNAMSIZ-1], name)
	return b
}

// padded is a port as part of a longer key.
func padded(port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(nil, port), 0, 0)
}
