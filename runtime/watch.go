package runtime

import (
	"context"
	"errors"
	"fmt"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/emptypb"
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
// the projects that something else has happened to, such as a change of health,
// and everything whenever an event may have been missed.
type watch struct {
	*agenda
	done chan struct{}
}

// watch starts to watch; it ends with ctx. Then join has to be called.
func (e *Engine) watch(ctx context.Context, topics string) *watch {
	w := &watch{agenda: newAgenda(), done: make(chan struct{})}
	e.mu.Lock()
	e.watches[w] = true
	e.mu.Unlock()
	go func() {
		defer close(w.done)
		defer func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(e.watches, w)
		}()
		for ctx.Err() == nil {
			if err := e.subscribe(ctx, topics, w.agenda); err != nil && ctx.Err() == nil {
				e.o.Logger.Debug("subscribing to events again", "error", err)
			}
			pause(ctx, subscribeAgain)
		}
	}()
	return w
}

// tellWatches puts projects on the agendas of all that watch.
func (e *Engine) tellWatches(projects ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tellWatchesLocked(projects...)
}

func (e *Engine) tellWatchesLocked(projects ...string) {
	for w := range e.watches {
		for _, project := range projects {
			w.addProject(project)
		}
	}
}

// tellContainer puts a container on the agendas of all that watch.
func (e *Engine) tellContainer(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for w := range e.watches {
		w.addContainer(id)
	}
}

func (w *watch) join() { <-w.done }

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
func (e *Engine) subscribe(ctx context.Context, topics string, news *agenda) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	service := e.o.Client.EventService()
	envelopes, errs := service.Subscribe(ctx, fmt.Sprintf("namespace==%q,topic~=%q", e.o.Namespace, "^("+topics+"|"+probeTopic+")$"))

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
				news.addAll()
			case event.Topic == probeTopic:
			case container == "":
				news.addAll()
			case exec == "": // the end of a probe or a hook is known to who started it
				news.addContainer(container)
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
func subject(e *events.Envelope) (container, exec string) {
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
