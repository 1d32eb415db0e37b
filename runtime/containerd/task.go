package containerd

import (
	"context"
	"time"
)

// Tasks are what runs in containers: their first processes, and commands beside
// these, which have an exec ID. Where one is asked for, "" is the first process.
type Tasks interface {
	Get(ctx context.Context, container, exec string) (Process, error)
	Create(context.Context, Task) error
	// Start returns the process ID.
	Start(ctx context.Context, container, exec string) (pid uint32, err error)
	// Wait returns when the process has ended.
	Wait(ctx context.Context, container, exec string) (Exit, error)
	// Delete forgets a first process that has ended, DeleteProcess another.
	Delete(ctx context.Context, container string) (Exit, error)
	DeleteProcess(ctx context.Context, container, exec string) (Exit, error)
	// Kill sends a signal to a process; with all to every one of the container.
	Kill(ctx context.Context, container, exec string, signal uint32, all bool) error
	Resume(ctx context.Context, container string) error

	// Exec prepares a command beside the first process.
	Exec(context.Context, Exec) error
	ResizePty(ctx context.Context, container, exec string, width, height uint32) error
	// CloseIO tells a process that nothing more comes on its standard input.
	CloseIO(ctx context.Context, container, exec string) error
}

// Streams are where a process reads from and writes to: paths of named pipes, or
// URIs that the shim understands. "" is nothing.
type Streams struct {
	Stdin    string
	Stdout   string
	Stderr   string
	Terminal bool
}

// Task is a first process that is to be.
type Task struct {
	Container string
	Rootfs    []Mount
	Streams
}

// Exec is a command that is to run beside a first process.
type Exec struct {
	Container string
	ID        string
	Spec      *Any // a process of the runtime specification
	Streams
}

// Process is one in a container.
type Process struct {
	Container string // its ID
	Pid       uint32
	Status    Status
	Exit
}

// Exit is how a process has ended.
type Exit struct {
	ExitStatus uint32
	ExitedAt   time.Time // zero: it has not
}

// Status is what a process does; the values are those of containerd's messages.
type Status int32

// What a process may do.
const (
	StatusUnknown Status = iota
	StatusCreated
	StatusRunning
	StatusStopped
	StatusPaused
	StatusPausing
)
