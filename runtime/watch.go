package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	containerdevents "github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/margolite/margolite/runtime/containerd"
)

const (
	// probeTopic is an event of our own: once it comes back, the subscription is live.
	probeTopic = "/margolite/probe"

	// Topics of the events needed to apply a project, to supervise all projects, and to
	// follow logs.
	applyTopics      = "/tasks/(exit|oom|delete)"
	supervisorTopics = applyTopics + "|/containers/create"
	logTopics        = "/tasks/(start|delete)|/containers/delete"

	probeEvery     = 50 * time.Millisecond
	subscribeAgain = time.Second
)

// watch puts on its agenda the containers of which an event of its topics came,
// and everything when something else has happened to its project, such as a change of
// health, and whenever an event may have been missed.
type watch struct {
	*agenda
	project string // "": all of them, which have workers to be told
}

// events are those of containerd.
type events struct {
	client    containerd.Client
	namespace string
	logger    *slog.Logger
}

// watch starts to watch. stop ends that, and has to be called.
func (ps *projects) watch(ctx context.Context, project, topics string) (w *watch, stop func()) {
	w = &watch{agenda: newAgenda(), project: project}
	ps.mu.Lock()
	ps.watches[w] = true
	ps.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	var subscribed sync.WaitGroup
	subscribed.Go(func() {
		for ctx.Err() == nil {
			if err := ps.events.subscribe(ctx, topics, w.agenda); err != nil && ctx.Err() == nil {
				ps.events.logger.Debug("subscribing to events again", "error", err)
			}
			pause(ctx, subscribeAgain)
		}
	})
	return w, func() {
		cancel()
		subscribed.Wait()
		ps.mu.Lock()
		defer ps.mu.Unlock()
		delete(ps.watches, w)
	}
}

// wait returns when something is on the agenda that concerns the caller, after d,
// or with an error when ctx is done.
func (w *watch) wait(ctx context.Context, d time.Duration, concerns func(items) bool) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-w.poked:
			if concerns(w.take()) {
				return nil
			}
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// subscribe puts the container of each event on an agenda until the stream breaks.
// The stream says nothing when it begins to listen, so an event of our own is sent
// until it arrives; anything may have happened before that.
func (e events) subscribe(ctx context.Context, topics string, agenda *agenda) error {
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
			container, exec := subject(event)
			switch {
			case event.Topic == probeTopic && !live:
				live = true
				probe.Stop()
				agenda.addAll()
			case event.Topic == probeTopic:
			case container == "":
				agenda.addAll()
			case exec == "": // the end of a probe or a hook is known to who started it
				agenda.add(container)
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

// subject is the container that an event is about, and the ID of the command in it, of
// which a container's own process has none. container is "" where it is not known.
func subject(e *containerdevents.Envelope) (container, exec string) {
	if e.Event == nil {
		return "", ""
	}
	about, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		return "", "" // of a type that is not linked
	}
	switch about := about.(type) {
	case *eventsapi.TaskExit:
		container, exec = about.ContainerID, about.ID
	case *eventsapi.TaskDelete:
		container, exec = about.ContainerID, about.ID
	case *eventsapi.TaskOOM:
		container = about.ContainerID
	case *eventsapi.TaskStart:
		container = about.ContainerID
	case *eventsapi.ContainerCreate:
		container = about.ID
	case *eventsapi.ContainerDelete:
		container = about.ID
	}
	if exec == container {
		exec = ""
	}
	return container, exec
}
