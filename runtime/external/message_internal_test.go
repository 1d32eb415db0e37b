package external

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/margolite/margolite/runtime/containerd"
)

// known are the messages that containerd answers with, as it has them and as they are read here.
func known() []struct {
	theirs proto.Message
	ours   func() message
} {
	return []struct {
		theirs proto.Message
		ours   func() message
	}{
		{new(imagesapi.Image), func() message { return image(new(containerd.Image)) }},
		{new(containersapi.Container), func() message { return container(new(containerd.Container)) }},
		{new(contentapi.Info), func() message { return contentInfo(new(containerd.ContentInfo)) }},
		{new(contentapi.Status), func() message { return ingestStatus(new(containerd.Ingest)) }},
		{new(contentapi.WriteContentRequest), func() message { return new(writeStep).message }},
		{new(leasesapi.Lease), func() message { return lease(new(containerd.Lease)) }},
		{new(leasesapi.Resource), func() message { return resource(new(containerd.Resource)) }},
		{new(snapshotsapi.Info), func() message { return snapshot(new(containerd.Snapshot)) }},
		{new(types.Descriptor), func() message { return descriptor(new(v1.Descriptor)) }},
		{new(types.Mount), func() message { return mount(new(containerd.Mount)) }},
		{new(types.Envelope), func() message { return envelope(new(containerd.Event), new(*containerd.Any)) }},
		{new(tasktypes.Process), func() message { return process(new(containerd.Process)) }},
		{new(introspectionapi.Plugin), func() message { return plugin(new(containerd.Plugin)) }},
	}
}

// unused are the fields that are passed over.
var unused = map[protoreflect.FullName]bool{
	"containerd.services.containers.v1.Container.sandbox":      true,
	"containerd.types.Envelope.timestamp":                      true,
	"containerd.v1.types.Process.container_id":                 true,
	"containerd.v1.types.Process.stdin":                        true,
	"containerd.v1.types.Process.stdout":                       true,
	"containerd.v1.types.Process.stderr":                       true,
	"containerd.v1.types.Process.terminal":                     true,
	"containerd.services.introspection.v1.Plugin.requires":     true,
	"containerd.services.introspection.v1.Plugin.platforms":    true,
	"containerd.services.introspection.v1.Plugin.capabilities": true,
	"containerd.services.introspection.v1.Plugin.init_err":     true,
}

// FuzzMessage reads what may have come, also as protobuf does.
func FuzzMessage(f *testing.F) {
	now := timestamppb.New(time.Unix(1e9, 999999999))
	for kind, m := range []proto.Message{
		&imagesapi.Image{Name: "i", Labels: map[string]string{"a": "b", "": ""}, Target: &types.Descriptor{Digest: "d", Size: -1}, CreatedAt: now},
		&containersapi.Container{
			ID: "c", Runtime: &containersapi.Container_Runtime{Name: "r", Options: new(anypb.Any)}, Spec: &anypb.Any{TypeUrl: "t", Value: []byte("{}")},
			Extensions: map[string]*anypb.Any{"x": {TypeUrl: "t", Value: []byte{0}}}, UpdatedAt: now,
		},
		&contentapi.Info{Digest: "d", Size: 1, Labels: map[string]string{"a": "b"}, UpdatedAt: timestamppb.New(time.Time{})},
		&contentapi.Status{StartedAt: now, Ref: "r", Offset: 1 << 62, Total: -1 << 63},
		&contentapi.WriteContentRequest{Action: contentapi.WriteAction_COMMIT, Data: []byte("data")},
		&leasesapi.Lease{ID: "l", CreatedAt: new(timestamppb.Timestamp)},
		&leasesapi.Resource{ID: "r", Type: "t"},
		&snapshotsapi.Info{Name: "n", Kind: -1, CreatedAt: &timestamppb.Timestamp{Nanos: -1}},
		&types.Descriptor{MediaType: "ü"},
		&types.Mount{Options: []string{"", "ro"}},
		&types.Envelope{Topic: "/t", Timestamp: now, Event: new(anypb.Any)},
		&tasktypes.Process{ID: "p", Pid: 1<<32 - 1, Status: 7, ExitedAt: now, Terminal: true},
		&introspectionapi.Plugin{Type: "t", Platforms: []*types.Platform{{OS: "o"}}, Exports: map[string]string{"a": "b"}},
	} {
		in, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(kind), in)
		f.Add(byte(kind), in[:len(in)-1])
		f.Add(byte(kind), append(in, in...))
		f.Add(byte(kind), append([]byte("\xfa\x01\x02ab\xf9\x0112345678\xfd\x011234\xf8\x01\xff\x01"), in...))
	}
	for _, in := range []string{
		"\x0b\x0c", "\x00", "\x08", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x0a\xff\xff\xff\xff\x0f", "\x09\x00", "\x0d", "\x0e\x00", "\x0a\x01\xff",
		"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", "\xf8\xff\xff\xff\x0f\x00", "\xf8\xff\xff\xff\x1f\x00", "\x12\x02\x0a\x05",
		"\x42\x0c\x08\x80\x92\xb8\xc3\x98\xfe\xff\xff\xff\x01", "\x42\x0c\x08\x80\x92\xb8\xc3\x98\xfe\xff\xff\xff\x01\x42\x02\x10\x05",
	} {
		for kind := range known() {
			f.Add(byte(kind), []byte(in))
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, in []byte) {
		all := known()
		k := all[int(kind)%len(all)]
		ours, theirs := k.ours(), k.theirs
		left, err := decode(in, ours, 100)
		if left < 0 != (err != nil && strings.Contains(err.Error(), "too many")) {
			t.Errorf("%d elements are left, %v", left, err)
		}
		if err != nil && !errors.Is(err, errFrame) {
			t.Errorf("error is %v", err)
		}
		theirErr := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(in, theirs)
		if theirErr != nil {
			if err == nil && !passedOver(theirs) {
				t.Errorf("%x is read, protobuf says %v", in, theirErr)
			}
			return
		}
		canonical, theirErr := proto.Marshal(theirs)
		if theirErr != nil {
			t.Fatal(theirErr)
		}
		strange := plainly(theirs.ProtoReflect(), false)
		again := k.ours()
		if _, canonicalErr := decode(canonical, again, maxItems); (canonicalErr != nil) != strange {
			t.Fatalf("%x is %v, with strange times: %v", canonical, canonicalErr, strange)
		}
		if !strange {
			expectSame(t, again, theirs, false)
		}
		if err == nil { // however it was written
			plainly(theirs.ProtoReflect(), true)
			expectSame(t, ours, theirs, true)
		}
	})
}

// passedOver says whether there may be in a message what is not read at all, and may be wrong.
func passedOver(m proto.Message) bool {
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if unused[fields.Get(i).FullName()] {
			return true
		}
	}
	return false
}

// plainly makes a message one that says the same in the words in which it is written here. It says whether times are none.
// With timeless it has no times: where several of them are for one field, they are parts of one for protobuf alone.
func plainly(m protoreflect.Message, timeless bool) (strange bool) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch {
		case unused[field.FullName()]:
			m.Clear(field)
		case field.IsMap() && field.MapValue().Message() != nil:
			for _, value := range m.Get(field).Map().Range {
				strange = plainly(value.Message(), timeless) || strange
			}
		case field.Message() == nil || field.IsMap() || field.IsList():
		case field.Message().FullName() == "google.protobuf.Timestamp":
			if !m.Has(field) {
				continue
			}
			at := m.Get(field).Message().Interface().(*timestamppb.Timestamp)
			if !at.IsValid() {
				strange = true
			}
			if timeless || at.AsTime().IsZero() || at.Seconds == 0 && at.Nanos == 0 {
				m.Clear(field)
			}
		case m.Has(field):
			strange = plainly(m.Mutable(field).Message(), timeless) || strange
		case field.Name() == "target" || field.Name() == "runtime": // always there
			m.Mutable(field)
		}
	}
	return strange
}

func expectSame(t *testing.T, ours message, theirs proto.Message, timeless bool) {
	t.Helper()
	out, err := encode(nil, ours)
	if err != nil {
		t.Fatal(err)
	}
	got := theirs.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(out, got); err != nil {
		t.Fatalf("%x is written: %v", out, err)
	}
	plainly(got.ProtoReflect(), timeless)
	if !proto.Equal(got, theirs) {
		t.Errorf("read is %s, protobuf reads %s", prototext.Format(got), prototext.Format(theirs))
	}
}

func TestMalformedMessages(t *testing.T) {
	field := func(number protowire.Number, data string) string {
		return string(protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), data))
	}
	at := func(seconds int64) string {
		return string(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(seconds)))
	}
	for name, in := range map[string]string{
		"half a number of a field":       "\x80",
		"a field without a number":       "\x02\x00",
		"a number that is too high":      "\x80\x80\x80\x80\x10\x00",
		"a number beyond 64 bits":        "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
		"half a value":                   "\x28\x80",
		"a value beyond 64 bits":         "\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
		"half of eight bytes":            "\x29\x00\x00\x00\x00",
		"half of four bytes":             "\x2d\x00\x00",
		"text that is longer":            "\x0a\x05four",
		"text of 16 EB":                  "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x",
		"text of 4 GB":                   "\x0a\xff\xff\xff\xff\x0fx",
		"a group":                        "\xa3\x06\xa4\x06",
		"the end of none":                "\xa4\x06",
		"a kind that is none":            "\x0e\x00",
		"text that is not UTF-8":         field(1, "\xff"),
		"a key that is not UTF-8":        field(2, field(1, "\xff")),
		"a value that is not UTF-8":      field(2, field(2, "\xff")),
		"a label that is broken":         field(2, "\x0a"),
		"a target that is broken":        field(3, "\x0a\x02a"),
		"a target longer than its image": "\x1a\x05\x0a\x02ab",
		"a time before all years":        field(7, at(firstSecond-1)),
		"a time after all years":         field(7, at(lastSecond+1)),
		"a second of more nanoseconds":   field(7, "\x10\x80\x94\xeb\xdc\x03"),
		"a second of less":               field(7, "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
		"too many labels":                strings.Repeat(field(2, ""), maxItems+1),
		"too many annotations":           strings.Repeat(field(3, field(5, "")), maxItems+1),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := decode([]byte(in), image(new(containerd.Image)), maxItems); !errors.Is(err, errFrame) {
				t.Errorf("error is %v", err)
			}
		})
	}
	if _, err := decode([]byte(strings.Repeat(field(4, ""), maxItems+1)), mount(new(containerd.Mount)), maxItems); !errors.Is(err, errFrame) {
		t.Errorf("of too many options, the error is %v", err)
	}
	if _, err := encode(nil, image(&containerd.Image{Labels: map[string]string{"a": "\xff"}})); !errdefs.IsInvalidArgument(err) {
		t.Errorf("of text that is not UTF-8, the error is %v", err)
	}
}

// What is read is not more than came, and appending to it spoils nothing.
func TestBytesAreThoseOfTheMessage(t *testing.T) {
	in := []byte("\x0a\x01t\x12\x01v\x0a\x01u")
	var a containerd.Any
	if _, err := decode(in, typed(&a), 0); err != nil || a.Type != "u" || string(a.Value) != "v" {
		t.Fatalf("read %+v, %v", a, err)
	}
	before := bytes.Clone(in)
	_ = append(a.Value, "spoilt"...)
	if !bytes.Equal(in, before) {
		t.Errorf("the message became %q", in)
	}
}
