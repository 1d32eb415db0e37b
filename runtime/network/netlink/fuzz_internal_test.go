package netlink

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzAnswers reads anything as what the kernel wrote at once: nothing makes it
// fail, no message has more than is there, and whatever ends one can be told.
// The seeds are what a kernel said.
func FuzzAnswers(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		rest := len(b)
		_, _ = answers(b, func(a answer) (bool, error) {
			if rest -= messageHeader + len(a.data); rest < 0 {
				t.Fatal("there is more in the messages than was received")
			}
			if a.kind == unix.NLMSG_ERROR || a.kind == unix.NLMSG_DONE {
				if err := a.outcome(); err != nil && err.Error() == "" {
					t.Error("an error without words")
				}
			}
			walk(t, a.data, 0)
			return true, nil
		})
	})
}

// walk reads what may be attributes, and those in them, as every kind of value.
func walk(t *testing.T, v Value, depth int) {
	if depth > 8 {
		return
	}
	total := 0
	_ = v.Each(func(_ uint16, in Value) error {
		if total += len(in); total > len(v) {
			t.Fatal("there is more in the attributes than in what they are in")
		}
		if len(in.Text()) > len(in) {
			t.Error("a text is longer than its value")
		}
		_, _, _, _, _ = in.Uint16(), in.Uint32(), in.Big16(), in.Big32(), in.Big64()
		walk(t, in, depth+1)
		return nil
	})
}

// FuzzAttributes writes values and reads them again.
func FuzzAttributes(f *testing.F) {
	f.Add(uint16(1), []byte{}, "", uint32(0))
	f.Add(uint16(7), []byte("lo"), "mgl-0123456789a", uint32(1<<31))
	f.Fuzz(func(t *testing.T, kind uint16, value []byte, text string, number uint32) {
		kind &^= unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
		var m Message
		m.Nest(kind, func() {
			m.Bytes(1, value...)
			m.Text(2, text)
			m.Uint32(3, number)
			m.Big32(4, number)
		})
		if _, err := m.appendTo(nil, 0, 1); err != nil {
			if !errors.Is(err, unix.EMSGSIZE) || len(value)+len(text) < 60000 {
				t.Errorf("%d and %d bytes: %v", len(value), len(text), err)
			}
			return
		}
		seen := 0
		err := Value(m.Encoded()).Each(func(outer uint16, v Value) error {
			return v.Each(func(inner uint16, v Value) error {
				seen++
				same := map[uint16]bool{
					1: string(v) == string(value),
					2: string(v) == text+"\x00",
					3: v.Uint32() == number,
					4: v.Big32() == number,
				}
				if outer != kind || !same[inner] {
					t.Errorf("attribute %d in %d is %q", inner, outer, v)
				}
				return nil
			})
		})
		if err != nil || seen != 4 {
			t.Errorf("%d attributes: %v", seen, err)
		}
	})
}
