package netlink

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Message is a request to the kernel, or something that it tells.
type Message struct {
	Type   uint16
	Flags  uint16 // a request's, besides those that the functions of Conn set
	Header []byte // that of the family, such as struct ifinfomsg, a multiple of four bytes
	Attributes
}

const messageHeader = unix.SizeofNlMsghdr

// appendTo lays out the message behind others.
func (m *Message) appendTo(b []byte, flags uint16, sequence uint32) ([]byte, error) {
	if m.tooLong {
		return nil, fmt.Errorf("an attribute is too long: %w", unix.EMSGSIZE)
	}
	length := messageHeader + len(m.Header) + len(m.bytes)
	b = binary.NativeEndian.AppendUint32(b, uint32(length))
	b = binary.NativeEndian.AppendUint16(b, m.Type)
	b = binary.NativeEndian.AppendUint16(b, m.Flags|flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, sequence)
	b = binary.NativeEndian.AppendUint32(b, 0) // the sender: the kernel knows
	b = append(append(b, m.Header...), m.bytes...)
	return append(b, make([]byte, aligned(length)-length)...), nil
}

// answer is a message of the kernel.
type answer struct {
	kind, flags uint16
	sequence    uint32
	data        []byte // from the header of the family on
}

// answers calls f for each message in what was received at once, until it
// returns false or an error.
func answers(b []byte, f func(answer) (bool, error)) (bool, error) {
	for len(b) > 0 {
		if len(b) < messageHeader {
			return false, fmt.Errorf("cannot read message: %d bytes are too few", len(b))
		}
		length := binary.NativeEndian.Uint32(b)
		if length < messageHeader || uint64(length) > uint64(len(b)) {
			return false, fmt.Errorf("cannot read message: it says that it has %d of %d bytes", length, len(b))
		}
		more, err := f(answer{
			kind:     binary.NativeEndian.Uint16(b[4:]),
			flags:    binary.NativeEndian.Uint16(b[6:]),
			sequence: binary.NativeEndian.Uint32(b[8:]),
			data:     b[messageHeader:length],
		})
		if !more || err != nil {
			return false, err
		}
		b = b[min(aligned(int(length)), len(b)):]
	}
	return true, nil
}

// Error is a request that the kernel refused.
type Error struct {
	Errno unix.Errno
	Text  string // the kernel's words, if it has any
}

func (e *Error) Error() string {
	if e.Text == "" {
		return e.Errno.Error()
	}
	return e.Errno.Error() + ": " + e.Text
}

// Unwrap makes errors.Is find the number.
func (e *Error) Unwrap() error { return e.Errno }

// outcome is what the end of an answer says: nil is success. It begins with a
// number, and has attributes behind it that say more.
func (a answer) outcome() error {
	if len(a.data) < 4 {
		return fmt.Errorf("cannot read outcome: %d bytes are too few", len(a.data))
	}
	number := int32(binary.NativeEndian.Uint32(a.data))
	if number == 0 {
		return nil
	}
	e := &Error{Errno: unix.Errno(-number)}
	more := a.data[4:]
	if a.kind == unix.NLMSG_ERROR {
		// The request comes back, or, where that is said, its header alone.
		skip := messageHeader
		if a.flags&unix.NLM_F_CAPPED == 0 && len(more) >= 4 {
			skip = max(skip, int(min(binary.NativeEndian.Uint32(more), uint32(len(more)))))
		}
		more = more[min(aligned(skip), len(more)):]
	}
	if a.flags&unix.NLM_F_ACK_TLVS != 0 {
		// Words that cannot be read are not worth an error of their own.
		_ = Value(more).Each(func(kind uint16, v Value) error {
			if kind == unix.NLMSGERR_ATTR_MSG {
				e.Text = v.Text()
			}
			return nil
		})
	}
	return e
}
