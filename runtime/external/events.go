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
		if err := s.receive(envelope(&event)); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		select {
		case come <- event:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func envelope(of *containerd.Event) message {
	return func(c *coder) {
		c.text(2, &of.Namespace)
		c.text(3, &of.Topic)
	}
}
