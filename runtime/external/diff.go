package external

import (
	"context"

	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/typeurl/v2"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/types/known/anypb"
)

type differ struct{ wire *wire }

func (d differ) Apply(ctx context.Context, layer v1.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (v1.Descriptor, error) {
	var config diff.ApplyConfig
	for _, opt := range opts {
		if err := opt(ctx, layer, &config); err != nil {
			return v1.Descriptor{}, err
		}
	}
	payloads := make(map[string]*anypb.Any, len(config.ProcessorPayloads))
	for name, value := range config.ProcessorPayloads {
		payloads[name] = typeurl.MarshalProto(value)
	}
	r := &diffapi.ApplyRequest{Diff: descriptorToSend(layer), Mounts: mount.ToProto(mounts), Payloads: payloads, SyncFs: config.SyncFs}
	got, err := call(ctx, d.wire, "diff.v1.Diff/Apply", r, new(diffapi.ApplyResponse))
	return descriptorOf(got.GetApplied()), err
}
