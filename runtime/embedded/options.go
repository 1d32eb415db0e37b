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

// Options says where containerd keeps its things.
type Options struct {
	Root   string       // what survives a reboot: content, snapshots, metadata
	State  string       // what does not: sockets, bundles
	Shim   string       // absolute path of the runc shim; "" is what FindShim finds
	Logger *slog.Logger // of containerd, whose info is our debug; nil discards

	// Check looks at a bbolt database that was not closed in order before it is opened. It fails with ErrDamaged where bbolt
	// would stumble over it: then all databases are replaced. nil: databases are opened as they are.
	Check func(path string) error
	// Namespace is whose images are known again after the database was lost.
	Namespace string
}
