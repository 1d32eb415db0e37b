package container

import (
	"bytes"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
)

// Shims read what containerd's own message says.
func TestShimOptionsAreThoseOfContainerd(t *testing.T) {
	for _, root := range []string{"/run/margolite/runc", "/" + string(bytes.Repeat([]byte("long/"), 100)), "/größe"} {
		got := shimOptions(root)
		want, err := typeurl.MarshalAny(&options.Options{Root: root})
		if err != nil {
			t.Fatal(err)
		}
		if got.Type != want.GetTypeUrl() || !bytes.Equal(got.Value, want.GetValue()) {
			t.Errorf("%s: got %s %x, want %s %x", root, got.Type, got.Value, want.GetTypeUrl(), want.GetValue())
		}
		v, err := typeurl.UnmarshalAny(&anypb.Any{TypeUrl: got.Type, Value: got.Value})
		if err != nil {
			t.Fatal(err)
		}
		if read, ok := v.(*options.Options); !ok || read.Root != root {
			t.Errorf("a shim reads %v", v)
		}
	}
}
