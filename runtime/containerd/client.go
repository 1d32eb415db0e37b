// Package containerd connects to a containerd with its own client, and holds what the parts of
// the runtime share about it: the services it uses, and a limit for unpacking layers.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/introspection"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Client is the part of containerd's client in use, which containerd 1.6 has too.
type Client interface {
	ContentStore() content.Store
	ImageService() images.Store
	LeasesService() leases.Manager
	SnapshotService(snapshotter string) snapshots.Snapshotter
	DiffService() client.DiffService
	ContainerService() containers.Store
	TaskService() tasks.TasksClient // its errors are gRPC's
	EventService() client.EventService
	IntrospectionService() introspection.Service
	GetLabel(ctx context.Context, label string) (string, error) // of the namespace
	Conn() any                                                  // see Address
	Close() error
}

var _ Client = (*client.Client)(nil)

const (
	// connectAgain is the pause between attempts of Connect.
	connectAgain = 50 * time.Millisecond

	// The delay between attempts to reconnect.
	firstRetry, lastRetry = 50 * time.Millisecond, time.Second

	// dialTimeout limits how long a socket may take to accept and to speak gRPC.
	dialTimeout = 10 * time.Second

	// maxHeader limits an answer's headers and trailers, which include errors, in bytes. The
	// client limits the answer itself to 16 MiB.
	maxHeader = 64 << 10
)

// Connect waits until the containerd behind a unix socket answers, or ctx ends. Calls use
// namespace, which is created if missing, unless their context names another. The client
// reconnects by itself when containerd restarts; meanwhile calls fail as unavailable.
func Connect(ctx context.Context, socket, namespace string) (*client.Client, error) {
	c, err := Open(socket, namespace)
	for err == nil {
		err = c.NamespaceService().Create(ctx, namespace, nil)
		if err == nil || errdefs.IsAlreadyExists(err) {
			return c, nil
		}
		if ctx.Err() != nil || !errdefs.IsUnavailable(err) {
			break
		}
		select {
		case <-time.After(connectAgain):
			err = nil
		case <-ctx.Done():
		}
	}
	err = fmt.Errorf("cannot connect to containerd at %s: %w", socket, err)
	if c != nil {
		err = errors.Join(err, c.Close())
	}
	return nil, err
}

// Open is Connect without waiting: containerd and the namespace need not exist yet.
func Open(socket, namespace string) (*client.Client, error) {
	retry := backoff.DefaultConfig
	retry.BaseDelay, retry.MaxDelay = firstRetry, lastRetry
	return client.New(socket, client.WithDefaultNamespace(namespace), client.WithExtraDialOpts([]grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: dialTimeout}),
		grpc.WithMaxHeaderListSize(maxHeader),
		// The client's own dialer waits for a missing socket, and calls with it.
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}),
	}))
}

// Address returns the socket path of a client's containerd.
func Address(c Client) string {
	conn, ok := c.Conn().(*grpc.ClientConn)
	if !ok {
		return ""
	}
	return strings.TrimPrefix(conn.Target(), "unix://")
}

// RecoveredLease holds the content found on the device after the database of the embedded
// containerd was lost, until it is known which of it is still wanted.
const RecoveredLease = "margolite-recovered"
