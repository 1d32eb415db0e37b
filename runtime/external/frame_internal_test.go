package external

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"google.golang.org/protobuf/proto"
)

func TestFrame(t *testing.T) {
	name := strings.Repeat("long", firstBytes)
	framed, err := frame(texts(name))
	if err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct {
		in   io.Reader
		want error // nil: the message
	}{
		"a message":              {bytes.NewReader(framed), nil},
		"a message in bytes":     {iotest.OneByteReader(bytes.NewReader(framed)), nil},
		"no message":             {strings.NewReader(""), io.EOF},
		"half a header":          {bytes.NewReader(framed[:3]), io.ErrUnexpectedEOF},
		"a header alone":         {bytes.NewReader(framed[:frameHeader]), io.ErrUnexpectedEOF},
		"half a message":         {bytes.NewReader(framed[:len(framed)/2]), io.ErrUnexpectedEOF},
		"a short one, broken":    {strings.NewReader("\x00\x00\x00\x00\x05four"), io.ErrUnexpectedEOF},
		"a short one, nothing":   {strings.NewReader("\x00\x00\x00\x00\x05"), io.ErrUnexpectedEOF},
		"a compressed message":   {strings.NewReader("\x01\x00\x00\x00\x01x"), errFrame},
		"more than is allowed":   {strings.NewReader("\x00\x01\x00\x00\x01x"), errFrame},
		"four gigabytes":         {strings.NewReader("\x00\xff\xff\xff\xffx"), errFrame},
		"a connection that died": {io.MultiReader(bytes.NewReader(framed[:9]), iotest.ErrReader(io.ErrNoProgress)), io.ErrNoProgress},
	} {
		t.Run(what, func(t *testing.T) {
			message, err := readFrame(test.in)
			if !errors.Is(err, test.want) {
				t.Fatalf("error is %v, want %v", err, test.want)
			}
			var got imagesapi.GetImageRequest
			if test.want == nil && (proto.Unmarshal(message, &got) != nil || got.Name != name) {
				t.Errorf("read something else")
			}
		})
	}
	if _, err := frame(texts(strings.Repeat("x", maxMessage))); err == nil {
		t.Error("too long a message is sent")
	}
}

func FuzzReadFrame(f *testing.F) {
	for _, seed := range []string{"", "\x00", "\x00\x00\x00\x00\x00", "\x00\x00\x00\x00\x02ab\x00\x00\x00\x00\x01c", "\x00\x00\x01\x00\x01ab", "\x01\x00\x00\x00\x01a", "\x00\xff\xff\xff\xff"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		var again []byte
		for {
			message, err := readFrame(r)
			if err != nil {
				break
			}
			again = append(again, 0, byte(len(message)>>24), byte(len(message)>>16), byte(len(message)>>8), byte(len(message)))
			again = append(again, message...)
		}
		if !bytes.HasPrefix(in, again) {
			t.Errorf("%q was read as %q", in, again)
		}
	})
}
