// Package containerd connects to a containerd with that one's own client, and has
// the few things that the runtime agrees on beside it: which services it uses, and
// a bound for what unpacking a layer may write.
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

// Client is what the runtime uses of containerd's *client.Client: services that
// containerd 1.6 has as well. Tests put others in their place.
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
	// connectAgain is how long Connect waits before it asks once more.
	connectAgain = 50 * time.Millisecond

	// Once its containerd is gone, a connection is tried again this often.
	firstRetry, lastRetry = 50 * time.Millisecond, time.Second

	// dialTimeout is how long a socket may take to accept, and to say that gRPC is
	// spoken there.
	dialTimeout = 10 * time.Second

	// maxHeader bounds the headers and trailers of an answer, in bytes. Messages of
	// errors are among them. How big an answer may be is bounded by the client: 16 MiB.
	maxHeader = 64 << 10
)

// Connect waits until the containerd behind a unix socket answers, or ctx ends. Calls
// are made in namespace unless their context names another; it is created where it is
// missing. The client connects again by itself when that containerd restarts; calls
// fail as unavailable meanwhile.
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

// Open is Connect without waiting: nobody may be there yet, and the namespace neither.
func Open(socket, namespace string) (*client.Client, error) {
	retry := backoff.DefaultConfig
	retry.BaseDelay, retry.MaxDelay = firstRetry, lastRetry
	return client.New(socket, client.WithDefaultNamespace(namespace), client.WithExtraDialOpts([]grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: dialTimeout}),
		grpc.WithMaxHeaderListSize(maxHeader),
		// The client's own dialer waits for a socket that is not there, and calls with it.
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}),
	}))
}

// Address is the path of the socket of the containerd that a client speaks to.
func Address(c Client) string {
	conn, ok := c.Conn().(*grpc.ClientConn)
	if !ok {
		return ""
	}
	return strings.TrimPrefix(conn.Target(), "unix://")
}

// RecoveredLease holds the content that is on the device since the database of the
// embedded containerd was lost, until it is known which of it is still wanted.
const RecoveredLease = "margolite-recovered"
