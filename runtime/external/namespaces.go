package external

import (
	"context"
	"fmt"

	"github.com/margolite/margolite/runtime/containerd"
)

const namespacesService = "namespaces.v1.Namespaces/"

func (c *Client) createNamespace(ctx context.Context, name string) error {
	return c.wire.call(ctx, namespacesService+"Create", only(texts(name)), nothing)
}

// GetLabel is a label of the namespace; "" if it has none.
func (c *Client) GetLabel(ctx context.Context, label string) (string, error) {
	var labels map[string]string
	err := c.wire.call(ctx, namespacesService+"Get", texts(c.wire.namespaceOf(ctx)), only(func(c *coder) { c.labels(2, &labels) }))
	return labels[label], err
}

// Plugins are the parts of containerd that one of the filters names.
func (c *Client) Plugins(ctx context.Context, filters ...string) (all []containerd.Plugin, err error) {
	err = c.wire.call(ctx, "introspection.v1.Introspection/Plugins", those(filters), func(c *coder) { list(c, 1, &all, plugin) })
	if err != nil {
		return nil, fmt.Errorf("cannot list parts of containerd: %w", err)
	}
	return all, nil
}

// Version is the version of that containerd, as it says it.
func (c *Client) Version(ctx context.Context) (version string, err error) {
	err = c.wire.call(ctx, "version.v1.Version/Version", nothing, func(c *coder) { c.text(1, &version) })
	if err != nil {
		return "", fmt.Errorf("cannot ask containerd for its version: %w", err)
	}
	return version, nil
}

func plugin(of *containerd.Plugin) message {
	return func(c *coder) {
		c.text(1, &of.Type)
		c.text(2, &of.ID)
		c.labels(5, &of.Exports)
	}
}
