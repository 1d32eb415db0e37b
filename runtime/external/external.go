// Package external connects to a containerd that this program does not run.
//
// Containerd 1.6 and newer will do: only services that it had then are used. Connections are made again by themselves
// when that containerd restarts; calls made meanwhile fail as unavailable.
//
// It speaks gRPC over the HTTP/2 of the standard library, because grpc-go and protobuf would be a fifth of the slim
// flavour (build/README.md): wire.go calls, stream.go reads and writes what has several messages, frame.go and status.go
// are the parts of the protocol that HTTP does not know, and message.go is the encoding of messages. The other files are
// the services, with what their messages consist of.
package external

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/margolite/margolite/runtime/containerd"
)

// again is how long Connect waits before it asks once more.
const again = 50 * time.Millisecond

// Client is a containerd behind a socket.
type Client struct{ wire *wire }

var _ containerd.Client = (*Client)(nil)

// Connect waits until the containerd behind the unix socket answers, or ctx ends. Calls of the client are made in
// namespace unless their context names another; the namespace is created where it is missing.
func Connect(ctx context.Context, socket, namespace string) (*Client, error) {
	c := Open(socket, namespace)
	for {
		err := c.createNamespace(ctx, namespace)
		if err == nil || errdefs.IsAlreadyExists(err) {
			return c, nil
		}
		if ctx.Err() == nil && errdefs.IsUnavailable(err) {
			select {
			case <-time.After(again):
				continue
			case <-ctx.Done():
			}
		}
		return nil, errors.Join(fmt.Errorf("cannot connect to containerd at %s: %w", socket, err), c.Close())
	}
}

// Open is Connect without waiting: nobody may be there yet, and the namespace neither.
func Open(socket, namespace string) *Client { return &Client{newWire(socket, namespace)} }

// Close ends the connection; calls under way fail, and later ones.
func (c *Client) Close() error {
	c.wire.close()
	return nil
}

// Address is the path of the socket.
func (c *Client) Address() string { return c.wire.socket }

// ContentStore keeps blobs by their digests.
func (c *Client) ContentStore() containerd.ContentStore { return contents{c.wire} }

// ImageService keeps the names of images.
func (c *Client) ImageService() containerd.ImageStore { return imageRecords{c.wire} }

// LeasesService keeps things from being collected.
func (c *Client) LeasesService() containerd.Leases { return leaseRecords{c.wire} }

// SnapshotService keeps root file systems.
func (c *Client) SnapshotService(snapshotter string) containerd.Snapshotter {
	return filesystems{c.wire, snapshotter}
}

// DiffService unpacks layers.
func (c *Client) DiffService() containerd.Applier { return differ{c.wire} }

// ContainerService keeps the records of containers.
func (c *Client) ContainerService() containerd.ContainerStore { return containerRecords{c.wire} }

// TaskService runs processes in containers.
func (c *Client) TaskService() containerd.Tasks { return tasks{c.wire} }

// EventService tells what happens.
func (c *Client) EventService() containerd.Events { return news{c.wire} }
