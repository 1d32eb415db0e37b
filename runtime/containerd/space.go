package containerd

import (
	"context"
	"errors"
)

// ErrMemory says that a layer cannot be unpacked within the memory of this device.
var ErrMemory = errors.New("unpacking needs more memory than this device can afford")

// Space bounds what Apply writes. An applier that runs in this process asks it.
type Space interface {
	// Take is called before so many bytes and files are written. Its error ends Apply, which
	// returns it.
	Take(bytes, files int64) error
	// Wrote reports bytes read of the layer, most of which were written.
	Wrote(bytes int64)
}

// WithSpace returns a context whose calls of Apply ask space.
func WithSpace(ctx context.Context, space Space) context.Context {
	return context.WithValue(ctx, spaceKey{}, space)
}

// SpaceOf returns the space of a context; nil: none.
func SpaceOf(ctx context.Context) Space {
	space, _ := ctx.Value(spaceKey{}).(Space)
	return space
}

type spaceKey struct{}
