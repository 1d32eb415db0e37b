//go:build slim

package embedded

import (
	"context"

	"github.com/margolite/margolite/runtime/containerd"
)

// Server is a containerd in this process; this build has none.
type Server struct{}

// Start returns ErrNotEmbedded.
func Start(context.Context, Options) (*Server, error) { return nil, ErrNotEmbedded }

// Client returns ErrNotEmbedded.
func (*Server) Client(context.Context, string) (containerd.Client, error) {
	return nil, ErrNotEmbedded
}

// Address is empty.
func (*Server) Address() string { return "" }

// Snapshotter is empty.
func (*Server) Snapshotter() string { return "" }

// Close does nothing.
func (*Server) Close() error { return nil }

func checkDamage(string) *Problem { return nil }
