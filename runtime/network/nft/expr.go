package nft

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/netlink"
)

// Expr is one expression of a rule: it loads something into a register, ends
// the rule unless something holds, or says what becomes of the packet.
//
// Registers are 1 to 4, of 16 bytes each, or unix.NFT_REG32_00 and those after
// it, which are the same in pieces of four bytes.
type Expr struct {
	name string
	data netlink.Value // attributes
}

func newExpr(name string, fill func(a *netlink.Attributes)) Expr {
	var a netlink.Attributes
	fill(&a)
	return Expr{name, a.Encoded()}
}

// Encoded is how the kernel gets the expression.
func (e Expr) Encoded() []byte {
	var a netlink.Attributes
	e.encode(&a)
	return a.Encoded()
}

func (e Expr) encode(a *netlink.Attributes) {
	a.Text(unix.NFTA_EXPR_NAME, e.name)
	a.Nest(unix.NFTA_EXPR_DATA, func() { a.Raw(e.data...) })
}

// LoadMeta loads what is known of a packet beside its bytes; key is one of
// unix.NFT_META.
func LoadMeta(key, register uint32) Expr {
	return newExpr("meta", func(a *netlink.Attributes) {
		a.Big32(unix.NFTA_META_KEY, key)
		a.Big32(unix.NFTA_META_DREG, register)
	})
}

// LoadPayload loads bytes of a packet; base is one of unix.NFT_PAYLOAD.
func LoadPayload(base, offset, length, register uint32) Expr {
	return newExpr("payload", func(a *netlink.Attributes) {
		a.Big32(unix.NFTA_PAYLOAD_DREG, register)
		a.Big32(unix.NFTA_PAYLOAD_BASE, base)
		a.Big32(unix.NFTA_PAYLOAD_OFFSET, offset)
		a.Big32(unix.NFTA_PAYLOAD_LEN, length)
	})
}

// LoadConnection loads what is known of the packet's connection; key is one of
// unix.NFT_CT.
func LoadConnection(key, register uint32) Expr {
	return newExpr("ct", func(a *netlink.Attributes) {
		a.Big32(unix.NFTA_CT_KEY, key)
		a.Big32(unix.NFTA_CT_DREG, register)
	})
}

// LoadAddressType loads of what type the destination is: unix.RTN_LOCAL, ...,
// in the machine's byte order.
func LoadAddressType(register uint32) Expr {
	return newExpr("fib", func(a *netlink.Attributes) {
		a.Big32(unix.NFTA_FIB_DREG, register)
		a.Big32(unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_DADDR)
		a.Big32(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE)
	})
}

// Immediate loads these bytes.
func Immediate(register uint32, value []byte) Expr {
	return newExpr("immediate", func(a *netlink.Attributes) {
		a.Big32(unix.NFTA_IMMEDIATE_DREG, register)
		a.Nest(unix.NFTA_IMMEDIATE_DATA, func() { a.Bytes(unix.NFTA_DATA_VALUE, value...) })
	})
}

// Mask leaves only these bits of what is in the register.
func Mask(register uint32, mask []byte) Expr {
	return newExpr("bitwise", func(a *netlink.Attributes) {
		a.Big32(unix.NFTA_BITWISE_SREG, register)
		a.Big32(unix.NFTA_BITWISE_DREG, register)
		a.Big32(unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		a.Nest(unix.NFTA_BITWISE_MASK, func() { a.Bytes(unix.NFTA_DATA_VALUE, mask...) })
		a.Nest(unix.NFTA_BITWISE_XOR, func() { a.Bytes(unix.NFTA_DATA_VALUE, make([]byte, len(mask))...) })
	})
}

// MaskOf leaves only the network's part of an address.
func MaskOf(p netip.Prefix, register uint32) Expr {
	mask := make([]byte, p.Addr().BitLen()/8)
	for bit := range p.Bits() {
		mask[bit/8] |= 0x80 >> (bit % 8)
	}
	return Mask(register, mask)
}

// Equals ends the rule unless the register begins with these bytes.
func Equals(register uint32, value []byte) Expr { return compare(unix.NFT_CMP_EQ, register, value) }

// Differs ends the rule if the register begins with these bytes.
func Differs(register uint32, value []byte) Expr { return compare(unix.NFT_CMP_NEQ, register, value) }

func compare(operation, register uint32, value []byte) Expr {
	return newExpr("cmp", func(a *netlink.Attributes) {
		a.Big32(unix.NFTA_CMP_SREG, register)
		a.Big32(unix.NFTA_CMP_OP, operation)
		a.Nest(unix.NFTA_CMP_DATA, func() { a.Bytes(unix.NFTA_DATA_VALUE, value...) })
	})
}

// Lookup ends the rule unless the register is a key of the set.
func Lookup(s Set, register uint32) Expr { return lookup(s, register, false, 0) }

// LookupNot ends the rule if the register is a key of the set.
func LookupNot(s Set, register uint32) Expr {
	return lookup(s, register, false, unix.NFT_LOOKUP_F_INV)
}

// Map ends the rule unless the register is a key of the map, and loads there
// what the key leads to.
func Map(s Set, register uint32) Expr { return lookup(s, register, true, 0) }

func lookup(s Set, register uint32, load bool, flags uint32) Expr {
	return newExpr("lookup", func(a *netlink.Attributes) {
		a.Big32(unix.NFTA_LOOKUP_SREG, register)
		if load {
			a.Big32(unix.NFTA_LOOKUP_DREG, register)
		}
		if flags != 0 {
			a.Big32(unix.NFTA_LOOKUP_FLAGS, flags)
		}
		a.Text(unix.NFTA_LOOKUP_SET, s.Name)
		a.Big32(unix.NFTA_LOOKUP_SET_ID, s.ID)
	})
}

// Remember adds what is in the register to a dynamic set; operation is one of
// unix.NFT_DYNSET_OP.
func Remember(s Set, register, operation uint32, life time.Duration) Expr {
	return newExpr("dynset", func(a *netlink.Attributes) {
		a.Big32(unix.NFTA_DYNSET_SREG_KEY, register)
		a.Big32(unix.NFTA_DYNSET_OP, operation)
		a.Big64(unix.NFTA_DYNSET_TIMEOUT, uint64(life.Milliseconds()))
		a.Text(unix.NFTA_DYNSET_SET_NAME, s.Name)
		a.Big32(unix.NFTA_DYNSET_SET_ID, s.ID)
		a.Big32(unix.NFTA_DYNSET_FLAGS, 0)
	})
}

// TranslateTo sends the connection to the address and the port in these
// registers.
func TranslateTo(f Family, address, port uint32) Expr {
	return newExpr("nat", func(a *netlink.Attributes) {
		a.Big32(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
		a.Big32(unix.NFTA_NAT_FAMILY, uint32(f))
		a.Big32(unix.NFTA_NAT_REG_ADDR_MIN, address)
		a.Big32(unix.NFTA_NAT_REG_PROTO_MIN, port)
	})
}

// Masquerade lets the connection leave under the address of its link.
func Masquerade() Expr { return newExpr("masq", func(*netlink.Attributes) {}) }

// Verdicts, from linux/netfilter.h and linux/netfilter/nf_tables.h.
const (
	Drop   int32 = 0
	Accept int32 = 1
	Queue  int32 = 3             // to a program
	Jump   int32 = unix.NFT_JUMP // through another chain and back
	Goto   int32 = unix.NFT_GOTO
	Return int32 = unix.NFT_RETURN
)

// Verdict says what becomes of the packet; chain is where Jump and Goto lead.
func Verdict(code int32, chain string) Expr {
	return newExpr("immediate", func(a *netlink.Attributes) {
		a.Big32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		a.Nest(unix.NFTA_IMMEDIATE_DATA, func() {
			a.Nest(unix.NFTA_DATA_VERDICT, func() {
				a.Big32(unix.NFTA_VERDICT_CODE, uint32(code))
				if chain != "" {
					a.Text(unix.NFTA_VERDICT_CHAIN, chain)
				}
			})
		})
	})
}

// Name is the kernel's of the kind of expression: "cmp", "payload", ...
func (e Expr) Name() string { return e.name }

// value is an attribute of the expression's.
func (e Expr) value(wanted uint16) (value netlink.Value, ok bool) {
	return find(e.data, wanted)
}

// find returns the last attribute of a kind. Expressions were read as a whole
// before, so that there is no error to tell.
func find(all netlink.Value, wanted uint16) (value netlink.Value, ok bool) {
	_ = all.Each(func(kind uint16, v netlink.Value) error {
		if kind == wanted {
			value, ok = v, true
		}
		return nil
	})
	return value, ok
}

// Verdict is what the expression makes of the packet, and where Jump and Goto
// lead; ok is false where it is no such expression.
func (e Expr) Verdict() (code int32, chain string, ok bool) {
	if e.name != "immediate" {
		return 0, "", false
	}
	data, _ := e.value(unix.NFTA_IMMEDIATE_DATA)
	verdict, _ := find(data, unix.NFTA_DATA_VERDICT)
	number, ok := find(verdict, unix.NFTA_VERDICT_CODE)
	name, _ := find(verdict, unix.NFTA_VERDICT_CHAIN)
	return int32(number.Big32()), name.Text(), ok
}

// LooksUpVerdict says whether a map decides what becomes of the packet.
func (e Expr) LooksUpVerdict() bool {
	register, ok := e.value(unix.NFTA_LOOKUP_DREG)
	return e.name == "lookup" && ok && register.Big32() == unix.NFT_REG_VERDICT
}

// LoadsHeader says of an expression whether it loads bytes of a packet, and
// whether they are of the header of the network: source, destination.
func (e Expr) LoadsHeader() (network, ok bool) {
	base, _ := e.value(unix.NFTA_PAYLOAD_BASE)
	return base.Big32() == unix.NFT_PAYLOAD_NETWORK_HEADER, e.name == "payload"
}

// Compared is what the expression compares with; nil where it is no comparison.
func (e Expr) Compared() []byte {
	if e.name != "cmp" {
		return nil
	}
	data, _ := e.value(unix.NFTA_CMP_DATA)
	value, _ := find(data, unix.NFTA_DATA_VALUE)
	return value
}
