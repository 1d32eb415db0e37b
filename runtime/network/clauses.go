package network

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// clause is a part of a rule: it loads something into a register, ends the rule unless
// something holds, or decides about the packet.
//
// Register 1 has 16 bytes and overlaps the 4-byte registers from 8 on; these run to 23, so
// fields that are loaded one after the other form a long key.
type clause []expr.Any

type field int

const (
	incoming field = iota // link
	outgoing              // link
	protocol
	source
	destination
	destinationPort
)

const firstWord = unix.NFT_REG32_00

// load loads the fields one after the other, from register 1 on.
func (f *family) load(fields ...field) clause {
	var all clause
	register := uint32(firstWord)
	for _, wanted := range fields {
		e, size := f.loading(wanted, register)
		all = append(all, e)
		register += (size + 3) / 4
	}
	return all
}

func (f *family) loading(wanted field, register uint32) (expr.Any, uint32) {
	switch wanted {
	case incoming:
		return &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register}, unix.IFNAMSIZ
	case outgoing:
		return &expr.Meta{Key: expr.MetaKeyOIFNAME, Register: register}, unix.IFNAMSIZ
	case protocol:
		return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, 1
	case source:
		return loadPayload(expr.PayloadBaseNetworkHeader, f.source, f.size, register), f.size
	case destination:
		return loadPayload(expr.PayloadBaseNetworkHeader, f.destination, f.size, register), f.size
	case destinationPort:
		return loadPayload(expr.PayloadBaseTransportHeader, 2, 2, register), 2
	}
	panic("unknown field") // a mistake in this package, found by the first test
}

func loadPayload(base expr.PayloadBase, offset, length, register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: length}
}

// in holds when what register 1 holds is in the set.
func in(s *set) clause {
	return clause{&expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID}}
}

func notIn(s *set) clause {
	return clause{&expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID, Invert: true}}
}

// found holds when register 1 is a key of the map, and loads its value.
func found(s *set) clause {
	return clause{&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: s.Name, SetID: s.ID}}
}

func equals(data []byte) clause {
	return clause{compare(expr.CmpOpEq, data)}
}

func compare(op expr.CmpOp, data []byte) expr.Any { return &expr.Cmp{Op: op, Register: 1, Data: data} }

func mask(bits []byte) expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(bits)), Mask: bits, Xor: make([]byte, len(bits))}
}

func isIn(p netip.Prefix) clause {
	return clause{mask(net.CIDRMask(p.Bits(), p.Addr().BitLen())), compare(expr.CmpOpEq, p.Masked().Addr().AsSlice())}
}

func toHost() clause {
	return clause{&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, compare(expr.CmpOpEq, native(unix.RTN_LOCAL))}
}

const destinationNAT = 1 << 5 // IPS_DST_NAT, of linux/netfilter/nf_conntrack_common.h

// answers holds for packets of a connection that was accepted before.
func answers() clause {
	return append(connection(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), compare(expr.CmpOpNeq, native(0)))
}

// begins holds for the first packet of a connection.
func begins() clause {
	return append(connection(expr.CtKeySTATE, expr.CtStateBitNEW), compare(expr.CmpOpNeq, native(0)))
}

// translated holds for packets of a connection to a published port.
func translated() clause {
	return append(connection(expr.CtKeySTATUS, destinationNAT), compare(expr.CmpOpNeq, native(0)))
}

func untranslated() clause {
	return append(connection(expr.CtKeySTATUS, destinationNAT), compare(expr.CmpOpEq, native(0)))
}

// untracked holds for packets exempted from connection tracking, such as copies.
func untracked() clause {
	return append(connection(expr.CtKeySTATE, expr.CtStateBitUNTRACKED), compare(expr.CmpOpNeq, native(0)))
}

// track has the kernel track an untracked packet: setting a zone does that.
func track() clause {
	return clause{&expr.Immediate{Register: 1, Data: []byte{0, 0}}, &expr.Ct{Key: expr.CtKeyZONE, Register: 1, SourceRegister: true}}
}

func copied() clause { return clause{&expr.Dup{RegAddr: 1}} }

// connection loads the given flags of the packet's connection.
func connection(key expr.CtKey, flags uint32) clause {
	return clause{&expr.Ct{Key: key, Register: 1}, mask(native(flags))}
}

// native encodes a number as the kernel keeps it in a register.
func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// toFound sends the connection to the value loaded by found.
func (f *family) toFound() clause {
	return clause{f.translateTo(1, firstWord+f.size/4)}
}

func (f *family) translateTo(address, port uint32) expr.Any {
	return &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.table), RegAddrMin: address, RegProtoMin: port}
}

func masquerade() clause { return clause{&expr.Masq{}} }

func accept() clause { return clause{&expr.Verdict{Kind: expr.VerdictAccept}} }

func drop() clause { return clause{&expr.Verdict{Kind: expr.VerdictDrop}} }

// run jumps to another chain of the table and comes back.
func run(chain string) clause {
	return clause{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

// leave returns from the chain; a base chain then applies its policy.
func leave() clause { return clause{&expr.Verdict{Kind: expr.VerdictReturn}} }

func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b[:unix.IFNAMSIZ-1], name)
	return b
}

// padded pads a port to the 4 bytes it takes in a longer key.
func padded(port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(nil, port), 0, 0)
}
