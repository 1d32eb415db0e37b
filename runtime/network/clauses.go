package network

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/nft"
)

// clause is a part of a rule: it loads something into a register, ends the
// rule unless something holds, or says what becomes of the packet.
//
// Register 1 has 16 bytes. 8 to 23 are what 1 and those after it are made of,
// four bytes each, so that what is loaded one after the other makes a long key.
type clause []nft.Expr

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

// loading also says how many bytes the field has.
func (f *family) loading(wanted field, register uint32) (nft.Expr, uint32) {
	switch wanted {
	case incoming:
		return nft.LoadMeta(unix.NFT_META_IIFNAME, register), unix.IFNAMSIZ
	case outgoing:
		return nft.LoadMeta(unix.NFT_META_OIFNAME, register), unix.IFNAMSIZ
	case protocol:
		return nft.LoadMeta(unix.NFT_META_L4PROTO, register), 1
	case source:
		return nft.LoadPayload(unix.NFT_PAYLOAD_NETWORK_HEADER, f.source, f.size, register), f.size
	case destination:
		return nft.LoadPayload(unix.NFT_PAYLOAD_NETWORK_HEADER, f.destination, f.size, register), f.size
	case port:
		return nft.LoadPayload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, register), 2
	}
	panic("unknown field") // a mistake in this package, found by the first test
}

// in holds when what was loaded into register 1 is in the set.
func in(s *set) clause {
	return clause{nft.Lookup(s.Set, 1)}
}

func notIn(s *set) clause {
	return clause{nft.LookupNot(s.Set, 1)}
}

// found holds when the map has register 1 for a key, and loads what the key
// leads to.
func found(s *set) clause {
	return clause{nft.Map(s.Set, 1)}
}

func equals(data []byte) clause {
	return clause{nft.Equals(1, data)}
}

// remembered puts register 1 into the set for that long, or longer again.
func remembered(s *set, operation uint32, life time.Duration) clause {
	return clause{nft.Remember(s.Set, 1, operation, life)}
}

// isIn holds when the address in register 1 is one of the prefix.
func isIn(p netip.Prefix) clause {
	return clause{nft.MaskOf(p, 1), nft.Equals(1, p.Masked().Addr().AsSlice())}
}

// toHost holds when the packet is for an address of the host.
func toHost() clause {
	return clause{nft.LoadAddressType(1), nft.Equals(1, native(unix.RTN_LOCAL))}
}

// The states of connections that are asked for, from
// linux/netfilter/nf_conntrack_common.h.
const (
	established    = 1 << 1
	related        = 1 << 2
	began          = 1 << 3
	destinationNAT = 1 << 5 // of the status: IPS_DST_NAT
)

// answers holds for packets of a connection that was let through before.
func answers() clause {
	return append(connection(unix.NFT_CT_STATE, established|related), nft.Differs(1, native(0)))
}

// begins holds for the first packet of a connection.
func begins() clause {
	return append(connection(unix.NFT_CT_STATE, began), nft.Differs(1, native(0)))
}

// translated holds for packets of a connection to a published port.
func translated() clause {
	return append(connection(unix.NFT_CT_STATUS, destinationNAT), nft.Differs(1, native(0)))
}

// untranslated holds for all others.
func untranslated() clause {
	return append(connection(unix.NFT_CT_STATUS, destinationNAT), nft.Equals(1, native(0)))
}

// connection loads those of the flags that the packet's connection has.
func connection(key, flags uint32) clause {
	return clause{nft.LoadConnection(key, 1), nft.Mask(1, native(flags))}
}

// native is a number as the kernel keeps it in a register.
func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// toFound sends the connection where the map led to.
func (f *family) toFound() clause {
	return clause{nft.TranslateTo(f.table, 1, firstWord+f.size/4)}
}

func masquerade() clause { return clause{nft.Masquerade()} }

func accept() clause { return clause{nft.Verdict(nft.Accept, "")} }

func drop() clause { return clause{nft.Verdict(nft.Drop, "")} }

// run goes through another chain of the table and comes back.
func run(chain string) clause {
	return clause{nft.Verdict(nft.Jump, chain)}
}

// leave ends the chain, with its policy.
func leave() clause { return clause{nft.Verdict(nft.Return, "")} }

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
