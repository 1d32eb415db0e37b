//go:build !slim

package embedded

import (
	"context"
	"fmt"
	"time"

	official "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/margolite/margolite/runtime/containerd"
)

// client is containerd's own, with services that it calls directly.
type client struct {
	direct  *official.Client
	address string
}

func (c client) ContentStore() containerd.ContentStore {
	return contentStore{c.direct.ContentStore()}
}

func (c client) ImageService() containerd.ImageStore { return imageStore{c.direct.ImageService()} }

func (c client) LeasesService() containerd.Leases { return leaseManager{c.direct.LeasesService()} }

func (c client) SnapshotService(name string) containerd.Snapshotter {
	return snapshotter{c.direct.SnapshotService(name)}
}

func (c client) DiffService() containerd.Applier { return applier{c.direct.ContentStore()} }

func (c client) ContainerService() containerd.ContainerStore {
	return containerStore{c.direct.ContainerService()}
}

func (c client) TaskService() containerd.Tasks { return taskService{c.direct.TaskService()} }

func (c client) EventService() containerd.Events { return eventService{c.direct.EventService()} }

func (c client) Plugins(ctx context.Context, filters ...string) ([]containerd.Plugin, error) {
	answer, err := c.direct.IntrospectionService().Plugins(within(ctx), filters...)
	if err != nil {
		return nil, fmt.Errorf("cannot list parts of containerd: %w", err)
	}
	list := make([]containerd.Plugin, len(answer.Plugins))
	for i, p := range answer.Plugins {
		list[i] = containerd.Plugin{Type: p.Type, ID: p.ID, Exports: p.Exports}
	}
	return list, nil
}

func (c client) GetLabel(ctx context.Context, label string) (string, error) {
	return c.direct.GetLabel(within(ctx), label)
}

func (c client) Address() string { return c.address }

func (c client) Close() error { return c.direct.Close() }

// within is a context of containerd's own, with the namespace and the lease of ctx.
func within(ctx context.Context) context.Context {
	if namespace := containerd.Namespace(ctx); namespace != "" {
		ctx = namespaces.WithNamespace(ctx, namespace)
	}
	if lease := containerd.LeaseOf(ctx); lease != "" {
		ctx = leases.WithLease(ctx, lease)
	}
	return ctx
}

func toAny(a *containerd.Any) *anypb.Any {
	if a == nil {
		return nil
	}
	return &anypb.Any{TypeUrl: a.Type, Value: a.Value}
}

func fromAny(a typeurl.Any) *containerd.Any {
	if a == nil {
		return nil
	}
	return &containerd.Any{Type: a.GetTypeUrl(), Value: a.GetValue()}
}

// fromTime makes a time that is not told the zero one.
func fromTime(t *timestamppb.Timestamp) time.Time {
	if t.GetSeconds() == 0 && t.GetNanos() == 0 {
		return time.Time{}
	}
	return t.AsTime()
}
