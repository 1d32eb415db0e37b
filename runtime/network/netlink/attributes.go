package netlink

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Attributes are the rest of a message behind its header, in the making: each
// has a kind and a value, which may be attributes again.
type Attributes struct {
	bytes   []byte
	tooLong bool // a value does not fit into its length, of 16 bits
}

// Bytes adds an attribute. Without a value it says something by being there.
func (a *Attributes) Bytes(kind uint16, value ...byte) {
	at := a.begin(kind)
	a.bytes = append(a.bytes, value...)
	a.end(at)
}

// Text adds a text as the kernel wants it, with a NUL behind.
func (a *Attributes) Text(kind uint16, value string) {
	at := a.begin(kind)
	a.bytes = append(append(a.bytes, value...), 0)
	a.end(at)
}

// Uint16 adds a number in the machine's byte order.
func (a *Attributes) Uint16(kind, value uint16) {
	a.Bytes(kind, binary.NativeEndian.AppendUint16(nil, value)...)
}

// Uint32 adds a number in the machine's byte order.
func (a *Attributes) Uint32(kind uint16, value uint32) {
	a.Bytes(kind, binary.NativeEndian.AppendUint32(nil, value)...)
}

// Big16 adds a number in the order of the wire.
func (a *Attributes) Big16(kind, value uint16) {
	a.Bytes(kind, binary.BigEndian.AppendUint16(nil, value)...)
}

// Big32 adds a number in the order of the wire.
func (a *Attributes) Big32(kind uint16, value uint32) {
	a.Bytes(kind, binary.BigEndian.AppendUint32(nil, value)...)
}

// Big64 adds a number in the order of the wire.
func (a *Attributes) Big64(kind uint16, value uint64) {
	a.Bytes(kind, binary.BigEndian.AppendUint64(nil, value)...)
}

// Nest adds an attribute whose value are those that fill adds.
func (a *Attributes) Nest(kind uint16, fill func()) {
	at := a.begin(kind | unix.NLA_F_NESTED)
	fill()
	a.end(at)
}

// Raw adds what is laid out already, such as a header within a value.
func (a *Attributes) Raw(b ...byte) { a.bytes = append(a.bytes, b...) }

// Encoded is how the kernel gets them.
func (a *Attributes) Encoded() []byte { return a.bytes }

const attributeHeader = 4 // struct nlattr: length and kind

// begin returns where the attribute is.
func (a *Attributes) begin(kind uint16) int {
	at := len(a.bytes)
	a.bytes = binary.NativeEndian.AppendUint16(append(a.bytes, 0, 0), kind)
	return at
}

// end writes the length, which is without the padding behind.
func (a *Attributes) end(at int) {
	length := len(a.bytes) - at
	if length > math.MaxUint16 {
		a.tooLong = true
		return
	}
	binary.NativeEndian.PutUint16(a.bytes[at:], uint16(length))
	a.bytes = append(a.bytes, make([]byte, aligned(length)-length)...)
}

// aligned is the length with what is padded behind.
func aligned(length int) int { return (length + 3) &^ 3 }

// Value is that of an attribute in an answer. What is too short for what is
// wanted of it is zero: a kernel has said nothing then that we know of.
type Value []byte

// Each calls f for each of the attributes that the value is made of, with the
// kinds as in the kernel's headers, until it returns an error. The values are
// parts of this one.
func (v Value) Each(f func(kind uint16, v Value) error) error {
	for rest := v; len(rest) > 0; {
		if len(rest) < attributeHeader {
			return fmt.Errorf("cannot read attribute: %d bytes are too few", len(rest))
		}
		length := int(binary.NativeEndian.Uint16(rest))
		if length < attributeHeader || length > len(rest) {
			return fmt.Errorf("cannot read attribute: it says that it has %d of %d bytes", length, len(rest))
		}
		kind := binary.NativeEndian.Uint16(rest[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if err := f(kind, rest[attributeHeader:length]); err != nil {
			return err
		}
		rest = rest[min(aligned(length), len(rest)):]
	}
	return nil
}

// Text is a text up to the NUL behind it.
func (v Value) Text() string {
	text, _, _ := bytes.Cut(v, []byte{0})
	return string(text)
}

// Uint16 is a number in the machine's byte order.
func (v Value) Uint16() uint16 { return number(v, 2, binary.NativeEndian.Uint16) }

// Uint32 is a number in the machine's byte order.
func (v Value) Uint32() uint32 { return number(v, 4, binary.NativeEndian.Uint32) }

// Big16 is a number in the order of the wire.
func (v Value) Big16() uint16 { return number(v, 2, binary.BigEndian.Uint16) }

// Big32 is a number in the order of the wire.
func (v Value) Big32() uint32 { return number(v, 4, binary.BigEndian.Uint32) }

// Big64 is a number in the order of the wire.
func (v Value) Big64() uint64 { return number(v, 8, binary.BigEndian.Uint64) }

// number is 0 where there are fewer bytes than it has.
func number[N uint16 | uint32 | uint64](v Value, size int, read func([]byte) N) N {
	if len(v) < size {
		return 0
	}
	return read(v)
}
