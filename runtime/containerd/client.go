// Package containerd is what the runtime asks of a containerd, wherever that
// runs: runtime/embedded has one in this process, runtime/external speaks to
// one over its socket. It holds nothing itself, and links no gRPC.
package containerd

import (
	"context"

	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
)

// Client is one containerd. Calls are made in the namespace of their context,
// and with its lease. Errors are those of errdefs.
type Client interface {
	ContentStore() content.Store
	ImageService() images.Store
	LeasesService() leases.Manager
	SnapshotService(snapshotter string) snapshots.Snapshotter
	DiffService() diff.Applier
	ContainerService() containers.Store
	TaskService() Tasks
	EventService() Events

	// Plugins are the parts of containerd that one of the filters names.
	Plugins(ctx context.Context, filters ...string) ([]*introspectionapi.Plugin, error)
	// GetLabel is a label of the namespace; "" if it has none.
	GetLabel(ctx context.Context, label string) (string, error)
	// Address is the path of containerd's socket.
	Address() string
	// Close ends what the client has open; calls under way fail.
	Close() error
}

// Tasks are what runs in containers: their first processes, and commands beside
// these, which have an ExecID.
type Tasks interface {
	Get(context.Context, *tasksapi.GetRequest) (*tasksapi.GetResponse, error)
	List(context.Context, *tasksapi.ListTasksRequest) (*tasksapi.ListTasksResponse, error)
	Create(context.Context, *tasksapi.CreateTaskRequest) (*tasksapi.CreateTaskResponse, error)
	Start(context.Context, *tasksapi.StartRequest) (*tasksapi.StartResponse, error)
	// Wait returns when the process has ended.
	Wait(context.Context, *tasksapi.WaitRequest) (*tasksapi.WaitResponse, error)
	Delete(context.Context, *tasksapi.DeleteTaskRequest) (*tasksapi.DeleteResponse, error)
	Kill(context.Context, *tasksapi.KillRequest) error
	Resume(context.Context, *tasksapi.ResumeTaskRequest) error

	Exec(context.Context, *tasksapi.ExecProcessRequest) error
	DeleteProcess(context.Context, *tasksapi.DeleteProcessRequest) (*tasksapi.DeleteResponse, error)
	ResizePty(context.Context, *tasksapi.ResizePtyRequest) error
	CloseIO(context.Context, *tasksapi.CloseIORequest) error
}

// Events are what containerd tells of what happens in it.
type Events interface {
	events.Publisher
	events.Subscriber
}
