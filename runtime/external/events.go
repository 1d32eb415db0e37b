package external

import (
	"context"

	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/typeurl/v2"
)

type news struct{ wire *wire }

const eventsService = "events.v1.Events/"

func (n news) Publish(ctx context.Context, topic string, event events.Event) error {
	packed, err := typeurl.MarshalAny(event)
	if err != nil {
		return err
	}
	return do(ctx, n.wire, eventsService+"Publish", &eventsapi.PublishRequest{Topic: topic, Event: typeurl.MarshalProto(packed)})
}

// Subscribe passes on events until ctx ends or the connection does, which is then told.
func (n news) Subscribe(ctx context.Context, filters ...string) (<-chan *events.Envelope, <-chan error) {
	come := make(chan *events.Envelope)
	ended := make(chan error, 1)
	go func() { // ends with ctx
		defer close(ended)
		err := receiveAll(ctx, n.wire, eventsService+"Subscribe", &eventsapi.SubscribeRequest{Filters: filters},
			func(got *types.Envelope) error {
				select {
				case come <- &events.Envelope{
					Timestamp: protobuf.FromTimestamp(got.GetTimestamp()), Namespace: got.GetNamespace(),
					Topic: got.GetTopic(), Event: got.GetEvent(),
				}:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		if ctx.Err() == nil {
			ended <- err
		}
	}()
	return come, ended
}
