package containerd

import (
	"context"
	"time"
)

// ContainerStore keeps the records of containers.
type ContainerStore interface {
	Get(ctx context.Context, id string) (Container, error)
	List(ctx context.Context, filters ...string) ([]Container, error)
	Create(context.Context, Container) (Container, error)
	// Update changes the fields that are named, as "spec" or "labels.KEY"; all of
	// them if none is.
	Update(ctx context.Context, container Container, fields ...string) (Container, error)
	Delete(ctx context.Context, id string) error
}

// Container is the record of one.
type Container struct {
	ID          string
	Labels      map[string]string
	Image       string
	Runtime     Runtime
	Spec        *Any
	SnapshotKey string
	Snapshotter string
	CreatedAt   time.Time
	UpdatedAt   time.Time
	Extensions  map[string]Any
}

// Runtime is the shim of a container, and what it is told.
type Runtime struct {
	Name    string
	Options *Any
}
