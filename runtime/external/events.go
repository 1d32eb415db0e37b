package external

import (
	"context"
	"errors"
	"io"

	"github.com/margolite/margolite/runtime/containerd"
)

type news struct{ wire *wire }

const eventsService = "events.v1.Events/"

// emptyType is the type of events that say nothing.
const emptyType = "google.protobuf.Empty"

func (r news) Publish(ctx context.Context, topic string) error {
	return r.wire.call(ctx, eventsService+"Publish", func(c *coder) {
		c.text(1, &topic)
		c.message(2, typed(&containerd.Any{Type: emptyType}))
	}, nothing)
}

// Subscribe passes on events until ctx ends or the connection does, which is then told.
func (r news) Subscribe(ctx context.Context, filters ...string) (<-chan containerd.Event, <-chan error) {
	come := make(chan containerd.Event)
	ended := make(chan error, 1)
	go func() { // ends with ctx
		defer close(ended)
		if err := r.passOn(ctx, filters, come); ctx.Err() == nil {
			ended <- err
		}
	}()
	return come, ended
}

func (r news) passOn(ctx context.Context, filters []string, come chan<- containerd.Event) error {
	s, err := r.wire.ask(ctx, eventsService+"Subscribe", those(filters))
	if err != nil {
		return err
	}
	defer s.close()
	for {
		var event containerd.Event
		var about *containerd.Any
		if err := s.receive(envelope(&event, &about)); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		subject(&event, about)
		select {
		case come <- event:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func envelope(of *containerd.Event, about **containerd.Any) message {
	return func(c *coder) {
		c.text(2, &of.Namespace)
		c.text(3, &of.Topic)
		c.any(4, about)
	}
}

// subject takes from the content of an event which container and process it is
// about. In all types of events that are named here, field 1 is the container.
func subject(of *containerd.Event, about *containerd.Any) {
	if about == nil {
		return
	}
	process := 0 // the field that names it
	switch about.Type {
	case "containerd.events.TaskExit":
		process = 2
	case "containerd.events.TaskDelete":
		process = 5
	case "containerd.events.TaskOOM", "containerd.events.TaskStart", "containerd.events.ContainerCreate", "containerd.events.ContainerDelete":
	default:
		return
	}
	var id, exec string
	_, err := decode(about.Value, func(c *coder) {
		c.text(1, &id)
		if process != 0 {
			c.text(process, &exec)
		}
	}, maxItems)
	if err != nil {
		return // then it may be about any container
	}
	if of.Container = id; exec != id {
		of.Exec = exec
	}
}
