package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	_ "github.com/containerd/containerd/api/events" // to decode events
	containerdevents "github.com/containerd/containerd/v2/core/events"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/margolite/margolite/runtime/containerd"
)

const (
	// probeTopic is an event of our own: once it comes back, the subscription is live.
	probeTopic = "/margolite/probe"

	// The events that tell when to look at a project, and when to follow the logs of a container.
	projectTopics = "/tasks/(exit|oom|delete)|/containers/create"
	logTopics     = "/tasks/(start|delete)|/containers/delete"

	probeEvery     = 50 * time.Millisecond
	subscribeAgain = time.Second
)

type events struct {
	namespace
	client containerd.Client
	logger *slog.Logger
}

// watch calls heard, until stop, with the container of each event; "" if unknown or after a gap.
func (e events) watch(ctx context.Context, topics string, heard func(container string)) (stop func()) {
	ctx, cancel := context.WithCancel(e.within(ctx))
	var subscribed sync.WaitGroup
	subscribed.Go(func() {
		for ctx.Err() == nil {
			if err := e.subscribe(ctx, topics, heard); err != nil && ctx.Err() == nil {
				e.logger.Debug("subscribing to events again", "error", err)
			}
			pause(ctx, subscribeAgain)
		}
	})
	return func() {
		cancel()
		subscribed.Wait()
	}
}

// subscribe is watch until the stream breaks. The stream does not say when it begins to
// listen, so probe events are sent until one arrives; anything may have happened before that.
func (e events) subscribe(ctx context.Context, topics string, heard func(container string)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	service := e.client.EventService()
	envelopes, errs := service.Subscribe(ctx, fmt.Sprintf("namespace==%q,topic~=%q", e.namespace, "^("+topics+"|"+probeTopic+")$"))

	probe := time.NewTicker(probeEvery)
	defer probe.Stop()
	live := false
	for {
		select {
		case event := <-envelopes:
			if event.Topic != probeTopic {
				hear(event, heard)
			} else if !live {
				live = true
				probe.Stop()
				heard("")
			}
		case <-probe.C:
			if live {
				continue
			}
			if err := service.Publish(ctx, probeTopic, &emptypb.Empty{}); err != nil {
				return fmt.Errorf("cannot publish event: %w", err)
			}
		case err := <-errs:
			if err == nil {
				err = errors.New("stream ended")
			}
			return fmt.Errorf("cannot read events: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func hear(event *containerdevents.Envelope, heard func(container string)) {
	if event.Event == nil {
		heard("")
		return
	}
	id, _ := event.Field([]string{"event", "id"})
	container, ofTask := event.Field([]string{"event", "container_id"})
	switch {
	case !ofTask:
		heard(id)
	case id == "" || id == container: // else a probe or a hook, whose end is known to who started it
		heard(container)
	}
}
