package containerd

import "context"

// Events are what containerd tells of what happens in it.
type Events interface {
	// Publish sends an event that is empty but for its topic, in the namespace of ctx.
	Publish(ctx context.Context, topic string) error
	// Subscribe passes on events until ctx ends or the connection does. The second
	// channel tells why, and is closed.
	Subscribe(ctx context.Context, filters ...string) (<-chan Event, <-chan error)
}

// Event is what happened. What exactly has to be asked for: an event may have
// been missed in any case.
type Event struct {
	Namespace string
	Topic     string // as "/tasks/exit"
	// Container is the id of the container that the event is about; "" where it
	// is about none, or its type is not known.
	Container string
	// Exec is the id of the process in the container that the event is about; ""
	// for its first one.
	Exec string
}
