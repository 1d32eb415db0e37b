package containerd

import (
	"context"
	"time"
)

// Leases keep things from being collected.
type Leases interface {
	// Create makes a lease. Without an ID it gets one.
	Create(context.Context, Lease) (Lease, error)
	// Delete ends a lease. With collect it returns when what nothing holds any
	// more has gone.
	Delete(ctx context.Context, id string, collect bool) error
	List(ctx context.Context, filters ...string) ([]Lease, error)
	AddResource(ctx context.Context, id string, held Resource) error
	DeleteResource(ctx context.Context, id string, held Resource) error
	ListResources(ctx context.Context, id string) ([]Resource, error)
}

// Lease is one of them.
type Lease struct {
	ID        string
	CreatedAt time.Time
	Labels    map[string]string
}

// ExpireLabel is the label of a lease with the time when it ends by itself, in
// RFC 3339.
const ExpireLabel = "containerd.io/gc.expire"

// RecoveredLease holds the content that is on the device since the database of the
// embedded containerd was lost, until it is known which of it is still wanted.
const RecoveredLease = "margolite-recovered"

// Resource is what a lease holds.
type Resource struct {
	Type string // "content", "ingests" or "snapshots/NAME"
	ID   string
}
