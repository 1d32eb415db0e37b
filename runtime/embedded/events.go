//go:build !slim

package embedded

import (
	"context"

	official "github.com/containerd/containerd/v2/client"
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
				case events <- containerd.Event{Namespace: e.Namespace, Topic: e.Topic}:
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
