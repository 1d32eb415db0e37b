package containerd

import "context"

type (
	namespaceKey struct{}
	leaseKey     struct{}
)

// WithNamespace is a context whose calls are made in a namespace.
func WithNamespace(ctx context.Context, namespace string) context.Context {
	return context.WithValue(ctx, namespaceKey{}, namespace)
}

// Namespace is that of a context; "" if it names none.
func Namespace(ctx context.Context) string {
	namespace, _ := ctx.Value(namespaceKey{}).(string)
	return namespace
}

// WithLease is a context whose calls make things that a lease holds.
func WithLease(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, leaseKey{}, id)
}

// LeaseOf is the lease of a context; "" if it names none.
func LeaseOf(ctx context.Context) string {
	id, _ := ctx.Value(leaseKey{}).(string)
	return id
}
