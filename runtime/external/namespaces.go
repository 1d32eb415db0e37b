package external

import (
	"context"
	"fmt"

	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/protobuf/types/known/emptypb"
)

const namespacesService = "namespaces.v1.Namespaces/"

func (c *Client) createNamespace(ctx context.Context, name string) error {
	r := &namespacesapi.CreateNamespaceRequest{Namespace: &namespacesapi.Namespace{Name: name}}
	_, err := call(ctx, c.wire, namespacesService+"Create", r, new(namespacesapi.CreateNamespaceResponse))
	return err
}

// GetLabel is a label of the namespace; "" if it has none.
func (c *Client) GetLabel(ctx context.Context, label string) (string, error) {
	name, ok := namespaces.Namespace(ctx)
	if !ok {
		name = c.wire.namespace
	}
	r := &namespacesapi.GetNamespaceRequest{Name: name}
	got, err := call(ctx, c.wire, namespacesService+"Get", r, new(namespacesapi.GetNamespaceResponse))
	return got.GetNamespace().GetLabels()[label], err
}

// Plugins are the parts of containerd that one of the filters names.
func (c *Client) Plugins(ctx context.Context, filters ...string) ([]*introspectionapi.Plugin, error) {
	r := &introspectionapi.PluginsRequest{Filters: filters}
	got, err := call(ctx, c.wire, "introspection.v1.Introspection/Plugins", r, new(introspectionapi.PluginsResponse))
	if err != nil {
		return nil, fmt.Errorf("cannot list parts of containerd: %w", err)
	}
	return got.Plugins, nil
}

// Version is the version of that containerd, as it says it.
func (c *Client) Version(ctx context.Context) (string, error) {
	got, err := call(ctx, c.wire, "version.v1.Version/Version", new(emptypb.Empty), new(versionapi.VersionResponse))
	if err != nil {
		return "", fmt.Errorf("cannot ask containerd for its version: %w", err)
	}
	return got.Version, nil
}
