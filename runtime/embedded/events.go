//go:build !slim

package embedded

import (
	"context"

	eventtypes "github.com/containerd/containerd/api/events"
	official "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/margolite/margolite/runtime/containerd"
)

type eventService struct{ direct official.EventService }

func (s eventService) Publish(ctx context.Context, topic string) error {
	return s.direct.Publish(within(ctx), topic, &emptypb.Empty{})
}

func (s eventService) Subscribe(ctx context.Context, filters ...string) (<-chan containerd.Event, <-chan error) {
	envelopes, broken := s.direct.Subscribe(within(ctx), filters...)
	events, failed := make(chan containerd.Event), make(chan error, 1)
	go func() { // ends with ctx, or with the subscription
		defer close(failed)
		for {
			select {
			case e := <-envelopes:
				select {
				case events <- fromEnvelope(e):
				case <-ctx.Done():
				}
			case err := <-broken:
				if err != nil {
					failed <- err
				}
				return
			}
		}
	}()
	return events, failed
}

func fromEnvelope(e *events.Envelope) containerd.Event {
	event := containerd.Event{Namespace: e.Namespace, Topic: e.Topic}
	if e.Event == nil {
		return event
	}
	about, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		return event // of a type that is not linked
	}
	switch about := about.(type) {
	case *eventtypes.TaskExit:
		event.Container = about.ContainerID
		if about.ID != about.ContainerID {
			event.Exec = about.ID
		}
	case *eventtypes.TaskDelete:
		event.Container = about.ContainerID
		if about.ID != about.ContainerID {
			event.Exec = about.ID
		}
	case *eventtypes.TaskOOM:
		event.Container = about.ContainerID
	case *eventtypes.TaskStart:
		event.Container = about.ContainerID
	case *eventtypes.ContainerCreate:
		event.Container = about.ID
	case *eventtypes.ContainerDelete:
		event.Container = about.ID
	}
	return event
}
