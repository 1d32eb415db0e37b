package nft

import (
	"bytes"
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/network/netlink"
)

// Type is what a part of a key or a value is, for those who list the set: nft's
// number of the type, and how many bytes it has.
type Type uint32

// The types that are used.
const (
	IPv4Address Type = 7<<8 | 4
	IPv6Address Type = 8<<8 | 16
	Protocol    Type = 12<<8 | 1
	Service     Type = 13<<8 | 2 // a port
	LinkName    Type = 41<<8 | unix.IFNAMSIZ
)

func (t Type) number() uint32 { return uint32(t) >> 8 }

func (t Type) size() uint32 { return uint32(t) & 0xff }

// concatenated types are one of their own, in which each begins at a multiple
// of four bytes.
func concatenated(types []Type) (number, size uint32) {
	if len(types) == 1 {
		return types[0].number(), types[0].size()
	}
	const bits = 6 // of a number
	for _, t := range types {
		number = number<<bits | t.number()
		size += (t.size() + 3) &^ 3
	}
	return number, size
}

// Set is known by its table and its name; within a batch its number has to be
// one of its own, and not zero.
type Set struct {
	Table   Table
	Name    string
	ID      uint32
	Key     []Type
	Value   []Type // what the keys of a map lead to; nil: it is a set
	Dynamic bool   // packets add to it, and elements end after a time
	Size    uint32 // the most elements; 0: any number
}

// Element is one of a set.
type Element struct {
	Key, Value []byte
	Timeout    time.Duration // how long it lasts; 0: for ever
	Expires    time.Duration // what is left of it, as the kernel tells
}

// AddSet adds an empty set.
func (b *Batch) AddSet(s Set) {
	m := message(unix.NFT_MSG_NEWSET, s.Table.Family)
	m.Flags = unix.NLM_F_CREATE
	m.Text(unix.NFTA_SET_TABLE, s.Table.Name)
	m.Text(unix.NFTA_SET_NAME, s.Name)
	m.Big32(unix.NFTA_SET_FLAGS, s.flags())
	number, size := concatenated(s.Key)
	m.Big32(unix.NFTA_SET_KEY_TYPE, number)
	m.Big32(unix.NFTA_SET_KEY_LEN, size)
	m.Big32(unix.NFTA_SET_ID, s.ID)
	if len(s.Value) > 0 {
		number, size = concatenated(s.Value)
		m.Big32(unix.NFTA_SET_DATA_TYPE, number)
		m.Big32(unix.NFTA_SET_DATA_LEN, size)
	}
	if s.Size > 0 || len(s.Key) > 1 {
		m.Nest(unix.NFTA_SET_DESC, func() { s.describe(m) })
	}
	// The names of links are in the machine's byte order, for nft, which shows
	// them empty otherwise.
	const byteOrder, host = 0, 1 // NFTNL_UDATA_SET_KEYBYTEORDER, BYTEORDER_HOST_ENDIAN
	m.Bytes(unix.NFTA_SET_USERDATA, binary.NativeEndian.AppendUint32([]byte{byteOrder, 4}, host)...)
	b.add("set "+s.Name, m)
}

func (s Set) flags() (flags uint32) {
	const concatenation = 0x80 // NFT_SET_CONCAT
	if len(s.Value) > 0 {
		flags |= unix.NFT_SET_MAP
	}
	if s.Dynamic {
		flags |= unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL
	}
	if len(s.Key) > 1 {
		flags |= concatenation
	}
	return flags
}

// describe says how big the set may be, and of what a long key is made.
func (s Set) describe(m *netlink.Message) {
	const parts, length = 2, 1 // NFTA_SET_DESC_CONCAT, NFTA_SET_FIELD_LEN
	if s.Size > 0 {
		m.Big32(unix.NFTA_SET_DESC_SIZE, s.Size)
	}
	if len(s.Key) > 1 {
		m.Nest(parts, func() {
			for _, t := range s.Key {
				m.Nest(unix.NFTA_LIST_ELEM, func() { m.Big32(length, t.size()) })
			}
		})
	}
}

// elementsPerMessage keep the list within one attribute, of 64 KiB.
const elementsPerMessage = 256

// AddElements adds to a set.
func (b *Batch) AddElements(s Set, elements []Element) {
	for len(elements) > 0 {
		part := elements[:min(elementsPerMessage, len(elements))]
		elements = elements[len(part):]
		m := message(unix.NFT_MSG_NEWSETELEM, s.Table.Family)
		m.Flags = unix.NLM_F_CREATE
		m.Text(unix.NFTA_SET_ELEM_LIST_TABLE, s.Table.Name)
		m.Text(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
		m.Big32(unix.NFTA_SET_ELEM_LIST_SET_ID, s.ID)
		m.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
			for _, e := range part {
				m.Nest(unix.NFTA_LIST_ELEM, func() { e.encode(m) })
			}
		})
		b.add("elements of set "+s.Name, m)
	}
}

func (e Element) encode(m *netlink.Message) {
	m.Nest(unix.NFTA_SET_ELEM_KEY, func() { m.Bytes(unix.NFTA_DATA_VALUE, e.Key...) })
	if e.Timeout > 0 {
		m.Big64(unix.NFTA_SET_ELEM_TIMEOUT, uint64(e.Timeout.Milliseconds()))
	}
	if len(e.Value) > 0 {
		m.Nest(unix.NFTA_SET_ELEM_DATA, func() { m.Bytes(unix.NFTA_DATA_VALUE, e.Value...) })
	}
}

// FlushSet removes all elements of a set.
func (b *Batch) FlushSet(s Set) {
	m := message(unix.NFT_MSG_DELSETELEM, s.Table.Family)
	m.Text(unix.NFTA_SET_ELEM_LIST_TABLE, s.Table.Name)
	m.Text(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	b.add("elements of set "+s.Name, m)
}

// Elements are those of a set. One that is not there is unix.ENOENT.
func (c *Conn) Elements(s Set) ([]Element, error) {
	m := message(unix.NFT_MSG_GETSETELEM, s.Table.Family)
	m.Text(unix.NFTA_SET_ELEM_LIST_TABLE, s.Table.Name)
	m.Text(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	parts, err := netlink.List(c.Conn, m, func(data []byte) ([]Element, bool, error) {
		part, err := readElements(data)
		return part, true, err
	})
	if err != nil {
		return nil, err
	}
	var all []Element
	for _, part := range parts {
		all = append(all, part...)
	}
	return all, nil
}

func readElements(data []byte) (all []Element, err error) {
	attributes, _, err := attributesOf(data)
	if err != nil {
		return nil, err
	}
	err = attributes.Each(func(kind uint16, v netlink.Value) error {
		if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return v.Each(func(_ uint16, v netlink.Value) error {
			e, err := readElement(v)
			all = append(all, e)
			return err
		})
	})
	return all, err
}

func readElement(v netlink.Value) (e Element, err error) {
	err = v.Each(func(kind uint16, v netlink.Value) (err error) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key, err = dataOf(v)
		case unix.NFTA_SET_ELEM_DATA:
			e.Value, err = dataOf(v)
		case unix.NFTA_SET_ELEM_TIMEOUT:
			e.Timeout = milliseconds(v)
		case unix.NFTA_SET_ELEM_EXPIRATION:
			e.Expires = milliseconds(v)
		}
		return err
	})
	return e, err
}

// dataOf is a copy of what is compared or led to; nothing where that is no
// plain data.
func dataOf(v netlink.Value) (data []byte, err error) {
	err = v.Each(func(kind uint16, v netlink.Value) error {
		if kind == unix.NFTA_DATA_VALUE {
			data = bytes.Clone(v)
		}
		return nil
	})
	return data, err
}

// milliseconds are not more than a Duration can say.
func milliseconds(v netlink.Value) time.Duration {
	const most = uint64(1<<63-1) / uint64(time.Millisecond)
	return time.Duration(min(v.Big64(), most)) * time.Millisecond
}
