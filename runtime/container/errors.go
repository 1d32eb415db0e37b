package container

import "errors"

// What a caller may act on.
var (
	ErrNotFound   = errors.New("not found on this device") // a volume, path or container that a service names
	ErrInUse      = errors.New("in use")                   // a volume that a container mounts
	ErrMoved      = errors.New("a link replaced it")       // in the way to what was allowed to be mounted
	ErrNotRunning = errors.New("not running")              // a container that a command is to run in

	// A start that waits for something in the root file system, such as the writer of a FIFO.
	ErrBlocked = errors.New("its start is blocked")
)
