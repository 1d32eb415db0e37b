package external_test

import (
	"context"
	"net"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	contentapi "github.com/containerd/containerd/api/services/content/v1"
	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/external"
)

// exchanged is a call as containerd's own messages have it.
type exchanged struct {
	call   func(context.Context, *external.Client) (any, error)
	method string
	asks   proto.Message
	gets   []proto.Message
	is     any // nil: nothing
}

// What containerd is asked and answers is what its own messages say, in each field that is used, whether it is there or
// not.
func TestMessagesAreThoseOfContainerd(t *testing.T) {
	var (
		created  = time.Date(2026, 2, 28, 23, 59, 59, 123456789, time.UTC)
		updated  = time.Date(1969, 12, 31, 23, 59, 59, 1, time.UTC)
		blob     = digest.FromString("blob")
		labels   = map[string]string{"a": "1", "ü": "", "": "none"}
		filters  = []string{"id==a", "", "labels.x"}
		createdP = timestamppb.New(created)
		updatedP = timestamppb.New(updated)
		never    = timestamppb.New(time.Time{}) // as containerd writes it

		desc    = v1.Descriptor{MediaType: "m", Digest: blob, Size: 1 << 40, Annotations: labels}
		descP   = &types.Descriptor{MediaType: "m", Digest: blob.String(), Size: 1 << 40, Annotations: labels}
		mounts  = []containerd.Mount{{Type: "overlay", Source: "s", Target: "t", Options: []string{"ro", ""}}, {}}
		mountsP = []*types.Mount{{Type: "overlay", Source: "s", Target: "t", Options: []string{"ro", ""}}, {}}
		streams = containerd.Streams{Stdin: "in", Stdout: "out", Stderr: "err", Terminal: true}

		image  = containerd.Image{Name: "i", Labels: labels, Target: desc, CreatedAt: created, UpdatedAt: updated}
		imageP = &imagesapi.Image{Name: "i", Labels: labels, Target: descP, CreatedAt: createdP, UpdatedAt: updatedP}

		container = containerd.Container{
			ID: "c", Labels: labels, Image: "i", Runtime: containerd.Runtime{Name: "runc", Options: &containerd.Any{Type: "o", Value: []byte{0, 255}}},
			Spec: &containerd.Any{Type: "spec", Value: []byte("{}")}, SnapshotKey: "k", Snapshotter: "overlayfs", CreatedAt: created, UpdatedAt: updated,
			Extensions: map[string]containerd.Any{"x": {Type: "y", Value: []byte("z")}, "none": {}},
		}
		containerP = &containersapi.Container{
			ID: "c", Labels: labels, Image: "i", Runtime: &containersapi.Container_Runtime{Name: "runc", Options: &anypb.Any{TypeUrl: "o", Value: []byte{0, 255}}},
			Spec: &anypb.Any{TypeUrl: "spec", Value: []byte("{}")}, SnapshotKey: "k", Snapshotter: "overlayfs", CreatedAt: createdP, UpdatedAt: updatedP,
			Extensions: map[string]*anypb.Any{"x": {TypeUrl: "y", Value: []byte("z")}, "none": {}},
		}

		info  = containerd.ContentInfo{Digest: blob, Size: 7, CreatedAt: created, UpdatedAt: updated, Labels: labels}
		infoP = &contentapi.Info{Digest: blob.String(), Size: 7, CreatedAt: createdP, UpdatedAt: updatedP, Labels: labels}

		ingest  = containerd.Ingest{Ref: "r", Offset: 5, Total: 7, Expected: blob, StartedAt: created, UpdatedAt: updated}
		ingestP = &contentapi.Status{Ref: "r", Offset: 5, Total: 7, Expected: blob.String(), StartedAt: createdP, UpdatedAt: updatedP}

		lease  = containerd.Lease{ID: "l", CreatedAt: created, Labels: labels}
		leaseP = &leasesapi.Lease{ID: "l", CreatedAt: createdP, Labels: labels}
		held   = containerd.Resource{Type: "content", ID: blob.String()}
		heldP  = &leasesapi.Resource{Type: "content", ID: blob.String()}

		snapshot  = containerd.Snapshot{Kind: containerd.KindCommitted, Name: "n", Parent: "p", Labels: labels, Created: created, Updated: updated}
		snapshotP = &snapshotsapi.Info{Kind: snapshotsapi.Kind_COMMITTED, Name: "n", Parent: "p", Labels: labels, CreatedAt: createdP, UpdatedAt: updatedP}

		ended  = containerd.Exit{ExitStatus: 255, ExitedAt: created}
		endedP = &tasksapi.DeleteResponse{ID: "c", Pid: 9, ExitStatus: 255, ExitedAt: createdP}
	)
	for name, x := range map[string]exchanged{
		"an image": {
			func(ctx context.Context, c *external.Client) (any, error) { return c.ImageService().Get(ctx, "i") },
			"images.v1.Images/Get", &imagesapi.GetImageRequest{Name: "i"},
			[]proto.Message{&imagesapi.GetImageResponse{Image: imageP}},
			image,
		},
		"images": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.ImageService().List(ctx, filters...)
			},
			"images.v1.Images/List", &imagesapi.ListImagesRequest{Filters: filters},
			[]proto.Message{&imagesapi.ListImagesResponse{Images: []*imagesapi.Image{imageP, {}, imageP}}},
			[]containerd.Image{image, {}, image},
		},
		"a new image": {
			func(ctx context.Context, c *external.Client) (any, error) { return c.ImageService().Create(ctx, image) },
			"images.v1.Images/Create", &imagesapi.CreateImageRequest{Image: imageP},
			[]proto.Message{&imagesapi.CreateImageResponse{Image: imageP}},
			image,
		},
		"an image with another target": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.ImageService().Update(ctx, image, "target", "labels.a")
			},
			"images.v1.Images/Update",
			&imagesapi.UpdateImageRequest{Image: imageP, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"target", "labels.a"}}},
			[]proto.Message{&imagesapi.UpdateImageResponse{Image: imageP}},
			image,
		},
		"an image that is all new": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.ImageService().Update(ctx, containerd.Image{Name: "i"})
			},
			"images.v1.Images/Update", &imagesapi.UpdateImageRequest{Image: &imagesapi.Image{Name: "i", Target: &types.Descriptor{}}},
			[]proto.Message{&imagesapi.UpdateImageResponse{Image: imageP}},
			image,
		},
		"no image": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.ImageService().Delete(ctx, "i")
			},
			"images.v1.Images/Delete", &imagesapi.DeleteImageRequest{Name: "i"},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},

		"a container": {
			func(ctx context.Context, c *external.Client) (any, error) { return c.ContainerService().Get(ctx, "c") },
			"containers.v1.Containers/Get", &containersapi.GetContainerRequest{ID: "c"},
			[]proto.Message{&containersapi.GetContainerResponse{Container: containerP}},
			container,
		},
		"containers": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.ContainerService().List(ctx, filters...)
			},
			"containers.v1.Containers/ListStream", &containersapi.ListContainersRequest{Filters: filters},
			[]proto.Message{&containersapi.ListContainerMessage{Container: containerP}, &containersapi.ListContainerMessage{Container: &containersapi.Container{ID: "d"}}},
			[]containerd.Container{container, {ID: "d"}},
		},
		"a new container": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.ContainerService().Create(ctx, container)
			},
			"containers.v1.Containers/Create", &containersapi.CreateContainerRequest{Container: containerP},
			[]proto.Message{&containersapi.CreateContainerResponse{Container: containerP}},
			container,
		},
		"a container with another specification": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.ContainerService().Update(ctx, containerd.Container{ID: "c", Spec: container.Spec}, "spec")
			},
			"containers.v1.Containers/Update",
			&containersapi.UpdateContainerRequest{
				Container:  &containersapi.Container{ID: "c", Spec: containerP.Spec, Runtime: &containersapi.Container_Runtime{}},
				UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"spec"}},
			},
			[]proto.Message{&containersapi.UpdateContainerResponse{Container: containerP}},
			container,
		},
		"no container": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.ContainerService().Delete(ctx, "c")
			},
			"containers.v1.Containers/Delete", &containersapi.DeleteContainerRequest{ID: "c"},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},

		"a blob": {
			func(ctx context.Context, c *external.Client) (any, error) { return c.ContentStore().Info(ctx, blob) },
			"content.v1.Content/Info", &contentapi.InfoRequest{Digest: blob.String()},
			[]proto.Message{&contentapi.InfoResponse{Info: infoP}},
			info,
		},
		"a blob with a label": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.ContentStore().Label(ctx, blob, map[string]string{"a": ""})
			},
			"content.v1.Content/Update",
			&contentapi.UpdateRequest{
				Info:       &contentapi.Info{Digest: blob.String(), Labels: map[string]string{"a": ""}},
				UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels.a"}},
			},
			[]proto.Message{&contentapi.UpdateResponse{Info: infoP}},
			nil,
		},
		"no blob": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.ContentStore().Delete(ctx, blob)
			},
			"content.v1.Content/Delete", &contentapi.DeleteContentRequest{Digest: blob.String()},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},
		"an ingest": {
			func(ctx context.Context, c *external.Client) (any, error) { return c.ContentStore().Status(ctx, "r") },
			"content.v1.Content/Status", &contentapi.StatusRequest{Ref: "r"},
			[]proto.Message{&contentapi.StatusResponse{Status: ingestP}},
			ingest,
		},
		"ingests": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.ContentStore().Ingests(ctx, filters...)
			},
			"content.v1.Content/ListStatuses", &contentapi.ListStatusesRequest{Filters: filters},
			[]proto.Message{&contentapi.ListStatusesResponse{Statuses: []*contentapi.Status{ingestP}}},
			[]containerd.Ingest{ingest},
		},
		"no ingest": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.ContentStore().Abort(ctx, "r")
			},
			"content.v1.Content/Abort", &contentapi.AbortRequest{Ref: "r"},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},

		"a layer": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.DiffService().Apply(ctx, desc, mounts)
			},
			"diff.v1.Diff/Apply", &diffapi.ApplyRequest{Diff: descP, Mounts: mountsP},
			[]proto.Message{&diffapi.ApplyResponse{Applied: descP}},
			desc,
		},

		"an event": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.EventService().Publish(ctx, "/a/b")
			},
			"events.v1.Events/Publish",
			&eventsapi.PublishRequest{Topic: "/a/b", Event: &anypb.Any{TypeUrl: "google.protobuf.Empty"}},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},
		"events": {
			func(ctx context.Context, c *external.Client) (any, error) {
				events, ended := c.EventService().Subscribe(ctx, filters...)
				all := []containerd.Event{}
				for {
					select {
					case event := <-events:
						all = append(all, event)
					case err := <-ended:
						return all, err
					}
				}
			},
			"events.v1.Events/Subscribe", &eventsapi.SubscribeRequest{Filters: filters},
			[]proto.Message{
				&types.Envelope{Timestamp: createdP, Namespace: "n", Topic: "/a", Event: &anypb.Any{TypeUrl: "x"}}, &types.Envelope{Topic: "/b"},
				happened(&eventtypes.TaskExit{ContainerID: "c", ID: "c", Pid: 1, ExitStatus: 7}), happened(&eventtypes.TaskExit{ContainerID: "c", ID: "e"}),
				happened(&eventtypes.TaskDelete{ContainerID: "c", Pid: 1}), happened(&eventtypes.TaskDelete{ContainerID: "c", ID: "e"}),
				happened(&eventtypes.TaskOOM{ContainerID: "c"}), happened(&eventtypes.TaskStart{ContainerID: "c", Pid: 1}),
				happened(&eventtypes.ContainerCreate{ID: "c", Image: "i"}), happened(&eventtypes.ContainerDelete{ID: "c"}),
				happened(&eventtypes.TaskCheckpointed{ContainerID: "c"}),
				&types.Envelope{Topic: "/t", Event: &anypb.Any{TypeUrl: "containerd.events.TaskOOM", Value: []byte("\x0a\x05c")}},
			},
			[]containerd.Event{
				{Namespace: "n", Topic: "/a"},
				{Topic: "/b"},
				{Topic: "/t", Container: "c"},
				{Topic: "/t", Container: "c", Exec: "e"},
				{Topic: "/t", Container: "c"},
				{Topic: "/t", Container: "c", Exec: "e"},
				{Topic: "/t", Container: "c"},
				{Topic: "/t", Container: "c"},
				{Topic: "/t", Container: "c"},
				{Topic: "/t", Container: "c"},
				{Topic: "/t"},
				{Topic: "/t"},
			},
		},

		"a new lease": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.LeasesService().Create(ctx, containerd.Lease{ID: "l", Labels: labels})
			},
			"leases.v1.Leases/Create", &leasesapi.CreateRequest{ID: "l", Labels: labels},
			[]proto.Message{&leasesapi.CreateResponse{Lease: leaseP}},
			lease,
		},
		"no lease": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.LeasesService().Delete(ctx, "l", true)
			},
			"leases.v1.Leases/Delete", &leasesapi.DeleteRequest{ID: "l", Sync: true},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},
		"leases": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.LeasesService().List(ctx, filters...)
			},
			"leases.v1.Leases/List", &leasesapi.ListRequest{Filters: filters},
			[]proto.Message{&leasesapi.ListResponse{Leases: []*leasesapi.Lease{leaseP}}},
			[]containerd.Lease{lease},
		},
		"what a lease is to hold": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.LeasesService().AddResource(ctx, "l", held)
			},
			"leases.v1.Leases/AddResource", &leasesapi.AddResourceRequest{ID: "l", Resource: heldP},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},
		"what a lease is not to hold": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.LeasesService().DeleteResource(ctx, "l", held)
			},
			"leases.v1.Leases/DeleteResource", &leasesapi.DeleteResourceRequest{ID: "l", Resource: heldP},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},
		"what a lease holds": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.LeasesService().ListResources(ctx, "l")
			},
			"leases.v1.Leases/ListResources", &leasesapi.ListResourcesRequest{ID: "l"},
			[]proto.Message{&leasesapi.ListResourcesResponse{Resources: []*leasesapi.Resource{heldP}}},
			[]containerd.Resource{held},
		},

		"a snapshot": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.SnapshotService("s").Stat(ctx, "k")
			},
			"snapshots.v1.Snapshots/Stat", &snapshotsapi.StatSnapshotRequest{Snapshotter: "s", Key: "k"},
			[]proto.Message{&snapshotsapi.StatSnapshotResponse{Info: snapshotP}},
			snapshot,
		},
		"snapshots": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.SnapshotService("s").List(ctx, filters...)
			},
			"snapshots.v1.Snapshots/List", &snapshotsapi.ListSnapshotsRequest{Snapshotter: "s", Filters: filters},
			[]proto.Message{
				&snapshotsapi.ListSnapshotsResponse{Info: []*snapshotsapi.Info{snapshotP, {Kind: snapshotsapi.Kind_VIEW}}},
				&snapshotsapi.ListSnapshotsResponse{Info: []*snapshotsapi.Info{{Kind: snapshotsapi.Kind_ACTIVE}}},
			},
			[]containerd.Snapshot{snapshot, {Kind: containerd.KindView}, {Kind: containerd.KindActive}},
		},
		"mounts": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.SnapshotService("s").Mounts(ctx, "k")
			},
			"snapshots.v1.Snapshots/Mounts", &snapshotsapi.MountsRequest{Snapshotter: "s", Key: "k"},
			[]proto.Message{&snapshotsapi.MountsResponse{Mounts: mountsP}},
			mounts,
		},
		"a new snapshot": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.SnapshotService("s").Prepare(ctx, "k", "p", labels)
			},
			"snapshots.v1.Snapshots/Prepare", &snapshotsapi.PrepareSnapshotRequest{Snapshotter: "s", Key: "k", Parent: "p", Labels: labels},
			[]proto.Message{&snapshotsapi.PrepareSnapshotResponse{Mounts: mountsP}},
			mounts,
		},
		"a snapshot that is done": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.SnapshotService("s").Commit(ctx, "n", "k", labels)
			},
			"snapshots.v1.Snapshots/Commit", &snapshotsapi.CommitSnapshotRequest{Snapshotter: "s", Name: "n", Key: "k", Labels: labels},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},
		"no snapshot": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.SnapshotService("s").Remove(ctx, "k")
			},
			"snapshots.v1.Snapshots/Remove", &snapshotsapi.RemoveSnapshotRequest{Snapshotter: "s", Key: "k"},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},

		"a process": {
			func(ctx context.Context, c *external.Client) (any, error) {
				got, err := c.TaskService().Get(ctx, "c", "x")
				if got.Container != "c" {
					t.Errorf("it is in %q", got.Container)
				}
				got.Container = ""
				return got, err
			},
			"tasks.v1.Tasks/Get", &tasksapi.GetRequest{ContainerID: "c", ExecID: "x"},
			[]proto.Message{&tasksapi.GetResponse{Process: &tasktypes.Process{ID: "x", Pid: 9, Status: tasktypes.Status_PAUSED, ExitedAt: never}}},
			containerd.Process{Pid: 9, Status: containerd.StatusPaused},
		},
		"a new task": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.TaskService().Create(ctx, containerd.Task{Container: "c", Rootfs: mounts, Streams: streams})
			},
			"tasks.v1.Tasks/Create",
			&tasksapi.CreateTaskRequest{ContainerID: "c", Rootfs: mountsP, Stdin: "in", Stdout: "out", Stderr: "err", Terminal: true},
			[]proto.Message{&tasksapi.CreateTaskResponse{ContainerID: "c", Pid: 9}},
			nil,
		},
		"a process that starts": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.TaskService().Start(ctx, "c", "x")
			},
			"tasks.v1.Tasks/Start", &tasksapi.StartRequest{ContainerID: "c", ExecID: "x"},
			[]proto.Message{&tasksapi.StartResponse{Pid: 9}},
			uint32(9),
		},
		"a process that ends": {
			func(ctx context.Context, c *external.Client) (any, error) { return c.TaskService().Wait(ctx, "c", "x") },
			"tasks.v1.Tasks/Wait", &tasksapi.WaitRequest{ContainerID: "c", ExecID: "x"},
			[]proto.Message{&tasksapi.WaitResponse{ExitStatus: 255, ExitedAt: createdP}},
			ended,
		},
		"no task": {
			func(ctx context.Context, c *external.Client) (any, error) { return c.TaskService().Delete(ctx, "c") },
			"tasks.v1.Tasks/Delete", &tasksapi.DeleteTaskRequest{ContainerID: "c"},
			[]proto.Message{endedP},
			ended,
		},
		"no process": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return c.TaskService().DeleteProcess(ctx, "c", "x")
			},
			"tasks.v1.Tasks/DeleteProcess", &tasksapi.DeleteProcessRequest{ContainerID: "c", ExecID: "x"},
			[]proto.Message{endedP},
			ended,
		},
		"a signal": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.TaskService().Kill(ctx, "c", "x", 15, true)
			},
			"tasks.v1.Tasks/Kill", &tasksapi.KillRequest{ContainerID: "c", ExecID: "x", Signal: 15, All: true},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},
		"a task that goes on": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.TaskService().Resume(ctx, "c")
			},
			"tasks.v1.Tasks/Resume", &tasksapi.ResumeTaskRequest{ContainerID: "c"},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},
		"a new process": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.TaskService().Exec(ctx, containerd.Exec{Container: "c", ID: "x", Spec: &containerd.Any{Type: "p", Value: []byte("{}")}, Streams: streams})
			},
			"tasks.v1.Tasks/Exec",
			&tasksapi.ExecProcessRequest{
				ContainerID: "c", ExecID: "x", Spec: &anypb.Any{TypeUrl: "p", Value: []byte("{}")}, Stdin: "in", Stdout: "out", Stderr: "err", Terminal: true,
			},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},
		"a terminal": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.TaskService().ResizePty(ctx, "c", "x", 80, 25)
			},
			"tasks.v1.Tasks/ResizePty", &tasksapi.ResizePtyRequest{ContainerID: "c", ExecID: "x", Width: 80, Height: 25},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},
		"the end of what is read": {
			func(ctx context.Context, c *external.Client) (any, error) {
				return nil, c.TaskService().CloseIO(ctx, "c", "x")
			},
			"tasks.v1.Tasks/CloseIO", &tasksapi.CloseIORequest{ContainerID: "c", ExecID: "x", Stdin: true},
			[]proto.Message{&emptypb.Empty{}},
			nil,
		},

		"a label of the namespace": {
			func(ctx context.Context, c *external.Client) (any, error) { return c.GetLabel(ctx, "a") },
			"namespaces.v1.Namespaces/Get", &namespacesapi.GetNamespaceRequest{Name: "usual"},
			[]proto.Message{&namespacesapi.GetNamespaceResponse{Namespace: &namespacesapi.Namespace{Name: "usual", Labels: labels}}},
			"1",
		},
		"parts of containerd": {
			func(ctx context.Context, c *external.Client) (any, error) { return c.Plugins(ctx, filters...) },
			"introspection.v1.Introspection/Plugins", &introspectionapi.PluginsRequest{Filters: filters},
			[]proto.Message{&introspectionapi.PluginsResponse{Plugins: []*introspectionapi.Plugin{{
				Type: "t", ID: "i", Requires: []string{"x"}, Platforms: []*types.Platform{{OS: "linux"}}, Exports: labels,
				Capabilities: []string{"y"},
			}}}},
			[]containerd.Plugin{{Type: "t", ID: "i", Exports: labels}},
		},
		"the version": {
			func(ctx context.Context, c *external.Client) (any, error) { return c.Version(ctx) },
			"version.v1.Version/Version", &emptypb.Empty{},
			[]proto.Message{&versionapi.VersionResponse{Version: "2.1", Revision: "r"}},
			"2.1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := x.answeredBy(t, x.gets...)
			if diff := cmp.Diff(x.is, got); err != nil || diff != "" {
				t.Errorf("read otherwise: %v\n%s", err, diff)
			}
			got, err = x.answeredBy(t, x.gets[0].ProtoReflect().New().Interface())
			if err != nil || !empty(got) {
				t.Errorf("of an empty answer %+v, %v is read", got, err)
			}
		})
	}
}

// empty says whether nothing was read, or nothing but empty messages.
func empty(got any) bool {
	v := reflect.ValueOf(got)
	if v.IsValid() && v.Kind() == reflect.Slice && v.Len() > 0 {
		v = v.Index(0)
	}
	return !v.IsValid() || v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0
}

// answeredBy makes the call, of a containerd that answers so.
func (x exchanged) answeredBy(t *testing.T, answers ...proto.Message) (any, error) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(s); method != "/containerd.services."+x.method {
			t.Errorf("called is %s, want %s", method, x.method)
		}
		asked := x.asks.ProtoReflect().New().Interface()
		if err := s.RecvMsg(asked); err != nil || !proto.Equal(asked, x.asks) || len(asked.ProtoReflect().GetUnknown()) > 0 {
			t.Errorf("asked is %v %s, want %s", err, prototext.Format(asked), prototext.Format(x.asks))
		}
		for _, answer := range answers {
			if err := s.SendMsg(answer); err != nil {
				return err
			}
		}
		return nil
	}))
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(l) })
	defer running.Wait()
	defer server.Stop()
	client := external.Open(socket, "usual")
	defer client.Close()
	return x.call(t.Context(), client)
}

// happened is an event of containerd, as it is sent.
func happened(event proto.Message) *types.Envelope {
	value, err := proto.Marshal(event)
	if err != nil {
		panic(err)
	}
	return &types.Envelope{Topic: "/t", Event: &anypb.Any{TypeUrl: string(event.ProtoReflect().Descriptor().FullName()), Value: value}}
}
