package network

import (
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// clause is a part of a rule: it loads something into a register, ends the
// rule unless something holds, or says what becomes of the packet.
//
// Register 1 has 16 bytes. 8 to 23 are what 1 and those after it are made of,
// four bytes each, so that what is loaded one after the other makes a long key.
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

// firstWord is the register of the first four bytes of register 1.
const firstWord = unix.NFT_REG32_00

// load loads the fields one after the other, from register 1 on.
func (f family) load(fields ...field) clause {
	var all clause
	register := uint32(firstWord)
	for _, wanted := range fields {
		e, size := f.loading(wanted, register)
		all = append(all, e)
		register += (size + 3) / 4
	}
	return all
}

// loading also says how many bytes the field has.
func (f family) loading(wanted field, register uint32) (expr.Any, uint32) {
	switch wanted {
	case incoming:
		return &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register}, unix.IFNAMSIZ
	case outgoing:
		return &expr.Meta{Key: expr.MetaKeyOIFNAME, Register: register}, unix.IFNAMSIZ
	case protocol:
		return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, 1
	case source:
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: f.source, Len: f.size}, f.size
	case destination:
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: f.destination, Len: f.size}, f.size
	case port:
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, 2
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

// remembered puts register 1 into the set for that long, or longer again.
func remembered(s *set, operation uint32, life time.Duration) clause {
	return clause{&expr.Dynset{SrcRegKey: 1, SetName: s.Name, SetID: s.ID, Operation: operation, Timeout: life}}
}

// isIn holds when the address in register 1 is one of the prefix.
func isIn(p netip.Prefix) clause {
	bits := p.Addr().BitLen()
	return clause{
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(bits / 8), Mask: net.CIDRMask(p.Bits(), bits), Xor: make([]byte, bits/8)},
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

// begins holds for the first packet of a connection.
func begins() clause {
	return connection(expr.CtKeySTATE, expr.CtStateBitNEW)
}

const destinationNAT = 1 << 5 // IPS_DST_NAT

// translated holds for packets of a connection to a published port.
func translated() clause { return connection(expr.CtKeySTATUS, destinationNAT) }

// untranslated holds for all others.
func untranslated() clause {
	c := translated()
	c[len(c)-1].(*expr.Cmp).Op = expr.CmpOpEq
	return c
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
func (f family) toFound() clause {
	return clause{&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.table), RegAddrMin: 1, RegProtoMin: firstWord + f.size/4}}
}

func masquerade() clause { return clause{&expr.Masq{}} }

func accept() clause { return clause{&expr.Verdict{Kind: expr.VerdictAccept}} }

func drop() clause { return clause{&expr.Verdict{Kind: expr.VerdictDrop}} }

// run goes through another chain of the table and comes back.
func run(chain string) clause {
	return clause{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

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
