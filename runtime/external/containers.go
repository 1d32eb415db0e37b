package external

import (
	"context"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
)

type containerRecords struct{ wire *wire }

const containersService = "containers.v1.Containers/"

func (c containerRecords) Get(ctx context.Context, id string) (containers.Container, error) {
	r := &containersapi.GetContainerRequest{ID: id}
	got, err := call(ctx, c.wire, containersService+"Get", r, new(containersapi.GetContainerResponse))
	return containerOf(got.GetContainer()), err
}

// List gets one message for each container, so that their number is not limited by the length of one.
func (c containerRecords) List(ctx context.Context, filters ...string) ([]containers.Container, error) {
	var all []containers.Container
	err := receiveAll(ctx, c.wire, containersService+"ListStream", &containersapi.ListContainersRequest{Filters: filters},
		func(got *containersapi.ListContainerMessage) error {
			all = append(all, containerOf(got.GetContainer()))
			return nil
		})
	return all, err
}

func (c containerRecords) Create(ctx context.Context, container containers.Container) (containers.Container, error) {
	r := &containersapi.CreateContainerRequest{Container: containerToSend(container)}
	got, err := call(ctx, c.wire, containersService+"Create", r, new(containersapi.CreateContainerResponse))
	return containerOf(got.GetContainer()), err
}

func (c containerRecords) Update(ctx context.Context, container containers.Container, fieldpaths ...string) (containers.Container, error) {
	r := &containersapi.UpdateContainerRequest{Container: containerToSend(container), UpdateMask: mask(fieldpaths)}
	got, err := call(ctx, c.wire, containersService+"Update", r, new(containersapi.UpdateContainerResponse))
	return containerOf(got.GetContainer()), err
}

func (c containerRecords) Delete(ctx context.Context, id string) error {
	return do(ctx, c.wire, containersService+"Delete", &containersapi.DeleteContainerRequest{ID: id})
}

func containerOf(c *containersapi.Container) containers.Container {
	extensions := make(map[string]typeurl.Any, len(c.GetExtensions()))
	for name, value := range c.GetExtensions() {
		extensions[name] = value
	}
	return containers.Container{
		ID: c.GetID(), Labels: c.GetLabels(), Image: c.GetImage(),
		Runtime: containers.RuntimeInfo{Name: c.GetRuntime().GetName(), Options: c.GetRuntime().GetOptions()},
		Spec:    c.GetSpec(), Snapshotter: c.GetSnapshotter(), SnapshotKey: c.GetSnapshotKey(),
		CreatedAt: protobuf.FromTimestamp(c.GetCreatedAt()), UpdatedAt: protobuf.FromTimestamp(c.GetUpdatedAt()),
		Extensions: extensions, SandboxID: c.GetSandbox(),
	}
}

func containerToSend(c containers.Container) *containersapi.Container {
	extensions := make(map[string]*anypb.Any, len(c.Extensions))
	for name, value := range c.Extensions {
		extensions[name] = typeurl.MarshalProto(value)
	}
	return &containersapi.Container{
		ID: c.ID, Labels: c.Labels, Image: c.Image,
		Runtime: &containersapi.Container_Runtime{Name: c.Runtime.Name, Options: typeurl.MarshalProto(c.Runtime.Options)},
		Spec:    typeurl.MarshalProto(c.Spec), Snapshotter: c.Snapshotter, SnapshotKey: c.SnapshotKey,
		Extensions: extensions, Sandbox: c.SandboxID,
	}
}
