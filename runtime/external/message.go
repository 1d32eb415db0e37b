package external

import (
	"encoding/binary"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/margolite/margolite/runtime/containerd"
)

// The kinds of fields: what follows the number of one (Protocol Buffers, Encoding, Message Structure). Groups, which no
// message of containerd has, are two more.
const (
	varintKind  = 0
	fixed64Kind = 1
	lengthKind  = 2
	fixed32Kind = 5
)

const (
	// maxField is the highest number of a field.
	maxField = 1<<29 - 1

	// maxItems is how many elements lists and maps of an answer may have: what takes two bytes there may take hundreds here.
	maxItems = 1 << 17

	// firstSecond and lastSecond are the years that a time may have, 1 to 9999, in seconds since 1970.
	firstSecond = -62135596800
	lastSecond  = 253402300799
)

// message is what a message of containerd consists of: it names each field that is used to a coder, by its number in
// containerd's .proto files, together with the variable that has it. The coder writes the fields from there or reads them
// into there, so that both are described once. What is not named is left out, and passed over.
//
// It is called once for all fields to be written, and once for each one that is read.
type message func(*coder)

// coder writes or reads a message in the encoding of Protocol Buffers. Protobuf's own packages would be a tenth of the
// slim flavour.
type coder struct {
	reading bool
	err     error // the first; nothing that comes after it counts

	out []byte // what is written

	field int // the one that is read, and has not been taken yet; else 0
	kind  byte
	value uint64 // of varintKind
	data  []byte // of lengthKind
	items int    // how many more elements there may be
}

// encode appends a message to out.
func encode(out []byte, m message) ([]byte, error) {
	c := coder{out: out}
	m(&c)
	return c.out, c.err
}

// decode reads a message that may have so many items, and says how many more there may be then. Bytes that were read are
// those of in.
func decode(in []byte, m message, items int) (int, error) {
	c := coder{reading: true, items: items}
	c.read(in, m)
	return c.items, c.err
}

func (c *coder) read(in []byte, m message) {
	for len(in) > 0 && c.err == nil {
		in = c.next(in)
		m(c)
	}
	c.field = 0 // it was inside, and is none of what it was inside of
}

// next reads a field and returns what is behind it.
func (c *coder) next(in []byte) []byte {
	key, n := binary.Uvarint(in)
	if n <= 0 || key>>3 == 0 || key>>3 > maxField {
		return c.refuse("has a field without a number")
	}
	in = in[n:]
	c.field, c.kind = int(key>>3), byte(key&7)
	switch c.kind {
	case varintKind:
		c.value, n = binary.Uvarint(in)
	case fixed64Kind:
		n = 8
	case fixed32Kind:
		n = 4
	case lengthKind:
		var size uint64
		if size, n = binary.Uvarint(in); n > 0 && size <= uint64(len(in)-n) {
			start := n
			n += int(size)
			c.data = in[start:n:n]
		} else {
			n = 0
		}
	default:
		n = 0
	}
	if n <= 0 || n > len(in) {
		return c.refuse(fmt.Sprintf("is broken in field %d", c.field))
	}
	return in[n:]
}

func (c *coder) refuse(why string) []byte {
	if c.err == nil {
		c.err = fmt.Errorf("%w: a message %s", errFrame, why)
	}
	c.field = 0
	return nil
}

// has says whether a field is the one that is read. One of another kind is another one.
func (c *coder) has(field int, kind byte) bool {
	return c.reading && c.field == field && c.kind == kind
}

// hasItem is has for an element of a list or a map.
func (c *coder) hasItem(field int) bool {
	if !c.has(field, lengthKind) {
		return false
	}
	if c.items--; c.items < 0 {
		c.refuse("has too many elements")
		return false
	}
	return true
}

func (c *coder) key(field int, kind byte) {
	c.out = binary.AppendUvarint(c.out, uint64(field)<<3|uint64(kind))
}

// number is what varintKind has.
func (c *coder) number(field int, value uint64) uint64 {
	switch {
	case c.has(field, varintKind):
		return c.value
	case !c.reading && value != 0:
		c.key(field, varintKind)
		c.out = binary.AppendUvarint(c.out, value)
	}
	return value
}

func (c *coder) int64(field int, to *int64) { *to = int64(c.number(field, uint64(*to))) }

func (c *coder) int32(field int, to *int32) { *to = int32(c.number(field, uint64(*to))) }

func (c *coder) uint32(field int, to *uint32) { *to = uint32(c.number(field, uint64(*to))) }

func (c *coder) bool(field int, to *bool) {
	var value uint64
	if *to {
		value = 1
	}
	*to = c.number(field, value) != 0
}

func (c *coder) bytes(field int, to *[]byte) {
	if c.has(field, lengthKind) {
		*to = c.data
	} else if !c.reading && len(*to) > 0 {
		c.write(field, *to)
	}
}

func (c *coder) write(field int, data []byte) {
	c.head(field, len(data))
	c.out = append(c.out, data...)
}

func (c *coder) head(field, size int) {
	c.key(field, lengthKind)
	c.out = binary.AppendUvarint(c.out, uint64(size))
}

func (c *coder) text(field int, to *string) {
	if c.has(field, lengthKind) {
		*to = c.readText()
	} else if !c.reading && *to != "" {
		c.writeText(field, *to)
	}
}

func (c *coder) readText() string {
	if !utf8.Valid(c.data) {
		c.refuse(fmt.Sprintf("has text in field %d that is not UTF-8", c.field))
	}
	return string(c.data)
}

func (c *coder) writeText(field int, text string) {
	if c.err == nil && !utf8.ValidString(text) {
		c.err = fmt.Errorf("%.100q is not UTF-8: %w", text, errdefs.ErrInvalidArgument)
	}
	c.head(field, len(text))
	c.out = append(c.out, text...)
}

// texts is a list.
func (c *coder) texts(field int, to *[]string) {
	if c.hasItem(field) {
		*to = append(*to, c.readText())
	} else if !c.reading {
		for _, text := range *to {
			c.writeText(field, text)
		}
	}
}

// message is one inside. It is written even if it is empty.
func (c *coder) message(field int, m message) {
	if c.has(field, lengthKind) {
		c.read(c.data, m)
	} else if !c.reading {
		inner := coder{err: c.err}
		m(&inner)
		c.err = inner.err
		c.write(field, inner.out)
	}
}

// labels is a map of text.
func (c *coder) labels(field int, to *map[string]string) {
	if c.hasItem(field) {
		var key, value string
		c.message(field, entry(&key, func(c *coder) { c.text(2, &value) }))
		if *to == nil {
			*to = make(map[string]string)
		}
		(*to)[key] = value
	} else if !c.reading {
		for key, value := range *to {
			c.message(field, entry(&key, func(c *coder) { c.text(2, &value) }))
		}
	}
}

// values is a map of what has a type.
func (c *coder) values(field int, to *map[string]containerd.Any) {
	if c.hasItem(field) {
		var key string
		var value containerd.Any
		c.message(field, entry(&key, func(c *coder) { c.message(2, typed(&value)) }))
		if *to == nil {
			*to = make(map[string]containerd.Any)
		}
		(*to)[key] = value
	} else if !c.reading {
		for key, value := range *to {
			c.message(field, entry(&key, func(c *coder) { c.message(2, typed(&value)) }))
		}
	}
}

// entry is one of a map.
func entry(key *string, value message) message {
	return func(c *coder) {
		c.text(1, key)
		value(c)
	}
}

// any is what has a type, or nil.
func (c *coder) any(field int, to **containerd.Any) {
	if *to == nil && c.has(field, lengthKind) {
		*to = new(containerd.Any)
	}
	if *to != nil {
		c.message(field, typed(*to))
	}
}

// time is left out where it is zero. Containerd passes on one that was left out as the beginning of 1970, which is
// therefore zero, too.
func (c *coder) time(field int, to *time.Time) {
	var seconds int64
	var nanos int32
	timestamp := func(c *coder) {
		c.int64(1, &seconds)
		c.int32(2, &nanos)
	}
	if c.has(field, lengthKind) {
		c.message(field, timestamp)
		switch {
		case seconds < firstSecond || seconds > lastSecond || nanos < 0 || nanos >= int32(time.Second):
			c.refuse("has a time that is none")
		case seconds == 0 && nanos == 0:
			*to = time.Time{}
		default:
			*to = time.Unix(seconds, int64(nanos)).UTC()
		}
	} else if !c.reading && !to.IsZero() {
		seconds, nanos = to.Unix(), int32(to.Nanosecond())
		c.message(field, timestamp)
	}
}

// list is one of messages.
func list[T any](c *coder, field int, to *[]T, of func(*T) message) {
	if c.hasItem(field) {
		var item T
		c.message(field, of(&item))
		*to = append(*to, item)
	} else if !c.reading {
		for i := range *to {
			c.message(field, of(&(*to)[i]))
		}
	}
}

// nothing is the message of calls that ask or answer nothing.
func nothing(*coder) {}

// texts is a message of texts alone.
func texts(all ...string) message {
	return func(c *coder) {
		for i := range all {
			c.text(i+1, &all[i])
		}
	}
}

// only is a message of one other.
func only(m message) message {
	return func(c *coder) { c.message(1, m) }
}

// those is a message of filters alone.
func those(filters []string) message {
	return func(c *coder) { c.texts(1, &filters) }
}

// mask names the fields that an update changes: without any, there is none, which means all.
func mask(c *coder, field int, paths []string) {
	if len(paths) > 0 {
		c.message(field, those(paths))
	}
}

// typed is google.protobuf.Any.
func typed(a *containerd.Any) message {
	return func(c *coder) {
		c.text(1, &a.Type)
		c.bytes(2, &a.Value)
	}
}
