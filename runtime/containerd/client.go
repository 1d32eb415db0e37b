// Package containerd is what the runtime asks of a containerd, wherever that
// runs: runtime/embedded has one in this process, runtime/external speaks to
// one over its socket. It holds nothing itself, and links nothing of
// containerd: neither its protobuf messages nor its packages, which need them.
//
// Names, and what the fields mean, are containerd's.
package containerd

import "context"

// Client is one containerd. Calls are made in the namespace of their context
// (WithNamespace), and what they make is held by its lease (WithLease). Errors
// are those of errdefs. Filters are in containerd's syntax.
type Client interface {
	ContentStore() ContentStore
	ImageService() ImageStore
	LeasesService() Leases
	SnapshotService(snapshotter string) Snapshotter
	DiffService() Applier
	ContainerService() ContainerStore
	TaskService() Tasks
	EventService() Events

	// Plugins are the parts of containerd that one of the filters names.
	Plugins(ctx context.Context, filters ...string) ([]Plugin, error)
	// GetLabel is a label of the namespace; "" if it has none.
	GetLabel(ctx context.Context, label string) (string, error)
	// Address is the path of containerd's socket.
	Address() string
	// Close ends what the client has open; calls under way fail.
	Close() error
}

// Plugin is a part of a containerd.
type Plugin struct {
	Type    string // as "io.containerd.snapshotter.v1"
	ID      string // as "overlayfs"
	Exports map[string]string
}

// Any is a value in a form that its type tells.
type Any struct {
	Type  string // URL of the type, as "types.containerd.io/opencontainers/runtime-spec/1/Spec"
	Value []byte
}
