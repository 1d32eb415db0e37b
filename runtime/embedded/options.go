package embedded

import (
	"errors"
	"log/slog"
)

var (
	// ErrLocked says that another process runs containerd on the same root.
	ErrLocked = errors.New("in use by another process")
	// ErrDamaged says that a database of containerd cannot be used.
	ErrDamaged = errors.New("damaged")
)

// Options are the options of a Server.
type Options struct {
	Root   string       // persistent: content, snapshots, metadata
	State  string       // lost at a reboot: sockets, bundles
	Shim   string       // absolute path of the runc shim; "" is what FindShim finds
	Logger *slog.Logger // of containerd, whose info is our debug; nil discards

	// Check checks a bbolt database before it is opened, unless it was closed cleanly. It fails with
	// ErrDamaged if bbolt would stumble over it: then all databases are replaced. May be nil.
	Check func(path string) error
	// Namespace is where images are recovered after a loss of the database.
	Namespace string
}
