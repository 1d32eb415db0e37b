package control

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/margolite/margolite/test/expect"
)

func TestFramesArriveAsTheyWereSent(t *testing.T) {
	var wire bytes.Buffer
	w := &frameWriter{w: &wire}
	long := strings.Repeat("x", 2*maxFrame+1)
	if n, err := io.WriteString(w.stream(frameStdout), long); n != len(long) || err != nil {
		t.Fatalf("%d bytes were written, %v", n, err)
	}
	expect.Check(t, errors.Join(w.write(frameStdin, nil), w.number(frameExit, 7), w.write(frameResize, encodeSize(Size{80, 24}))))
	expect.Error(t, w.write(frameStdout, make([]byte, maxFrame+1)), errFrame, "a frame that is too long")

	buf := make([]byte, maxFrame)
	var text string
	for range 3 {
		kind, payload, err := readFrame(&wire, buf)
		expect.Require(t, kind == frameStdout && err == nil, "kind %d, %v", kind, err)
		text += string(payload)
	}
	expect.Equal(t, text, long, "what was written in several frames is not what arrived")
	for _, want := range []struct {
		kind    frameKind
		payload string
	}{{frameStdin, ""}, {frameExit, "\x00\x00\x00\x07"}, {frameResize, string(encodeSize(Size{80, 24}))}} {
		kind, payload, err := readFrame(&wire, buf)
		expect.Error(t, err, nil, "frame of kind %d", want.kind)
		expect.Equal(t, kind, want.kind, "kind")
		expect.Equal(t, string(payload), want.payload, "payload of kind %d", kind)
	}
	expect.Equal(t, decodeSize(encodeSize(Size{80, 24})), Size{80, 24}, "size")
}

func TestMalformedFramesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		wire string
		want error
	}{
		"longer than allowed":  {"\x01\x00\x00\x80\x01", errFrame},
		"longer than memory":   {"\x01\xff\xff\xff\xff", errFrame},
		"a size that is short": {"\x03\x00\x00\x00\x02ab", errFrame},
		"a code that is long":  {"\x04\x00\x00\x00\x05abcde", errFrame},
		"nothing":              {"", io.EOF},
		"half a header":        {"\x01\x00", io.ErrUnexpectedEOF},
		"no payload":           {"\x01\x00\x00\x00\x01", io.ErrUnexpectedEOF},
		"half a payload":       {"\x01\x00\x00\x00\x02a", io.ErrUnexpectedEOF},
	} {
		_, _, err := readFrame(strings.NewReader(c.wire), make([]byte, maxFrame))
		expect.Error(t, err, c.want, "%s", name)
	}
}

// Whatever comes, no frame is longer than its bound, and what is read is what
// would be written.
func FuzzFrames(f *testing.F) {
	for _, seed := range []string{
		"", "\x00\x00\x00\x00\x00", "\x01\x00\x00\x00\x05hello\x04\x00\x00\x00\x04\x00\x00\x00\x01",
		"\x03\x00\x00\x00\x04\x00\x50\x00\x18", "\x06\xff\xff\xff\xff", "\x2a\x00\x00\x00\x01?", "\x05\x00\x00\x80\x00",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		r, buf := bytes.NewReader(wire), make([]byte, maxFrame)
		var again bytes.Buffer
		w := &frameWriter{w: &again}
		read := 0
		for {
			kind, payload, err := readFrame(r, buf)
			if err != nil {
				break
			}
			if err := w.write(kind, payload); err != nil {
				t.Fatalf("a frame that was read cannot be written: %v", err)
			}
			read = len(wire) - r.Len()
		}
		if !bytes.Equal(again.Bytes(), wire[:read]) {
			t.Errorf("%q was read as %q", wire[:read], again.Bytes())
		}
	})
}

// Input that nobody reads is bounded, and input that was read makes room.
func TestInputIsBounded(t *testing.T) {
	credited := 0
	in := newExecInput(func(n int) { credited += n })
	for range inputWindow / maxFrame {
		expect.Check(t, in.feed(make([]byte, maxFrame)))
	}
	expect.Error(t, in.feed([]byte("x")), errFrame, "more than the window")
	if _, err := io.ReadFull(in, make([]byte, 100)); err != nil || credited != 100 {
		t.Errorf("%d bytes were credited, %v", credited, err)
	}
	expect.Error(t, in.feed(make([]byte, 100)), nil, "input for which there is room again")
	in.end(io.EOF)
	if rest, err := io.ReadAll(in); len(rest) != inputWindow || err != nil {
		t.Errorf("the rest is %d bytes, %v", len(rest), err)
	}
}
