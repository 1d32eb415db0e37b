// Package external connects to a containerd that this program does not run.
//
// Containerd 1.6 and newer will do: only services that it had then are used. Connections are made again by themselves
// when that containerd restarts; calls made meanwhile fail as unavailable.
package external

import (
	"context"
	"errors"
	"fmt"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
)

// Connect waits until the containerd behind the unix socket answers, or ctx ends. Calls of the client are made in
// namespace unless their context names another; the namespace is created where it is missing.
func Connect(ctx context.Context, socket, namespace string) (*containerd.Client, error) {
	client, err := containerd.New(socket, containerd.WithDefaultNamespace(namespace))
	if err != nil {
		return nil, fmt.Errorf("cannot connect to containerd at %s: %w", socket, err)
	}
	if err := prepare(ctx, client, namespace); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot connect to containerd at %s: %w", socket, err), client.Close())
	}
	return client, nil
}

func prepare(ctx context.Context, client *containerd.Client, namespace string) error {
	if _, err := client.IsServing(ctx); err != nil {
		return err
	}
	if err := client.NamespaceService().Create(ctx, namespace, nil); err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return nil
}
