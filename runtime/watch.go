package runtime

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// probeTopic is an event of our own: once it comes back, the subscription is live.
	probeTopic = "/margolite/probe"

	endings = "/tasks/(exit|oom|delete)"                 // topics: what a supervisor has to know
	comings = "/tasks/(start|delete)|/containers/delete" // topics: whose output there is

	probeEvery     = 50 * time.Millisecond
	subscribeAgain = time.Second
)

// watch pokes when an event of its topics came, when the health of a container
// changed, and whenever such news may have been missed.
type watch struct {
	news chan struct{}
	done chan struct{}
}

// watch starts to watch; it ends with ctx. Then join has to be called.
func (e *Engine) watch(ctx context.Context, topics string) *watch {
	w := &watch{news: make(chan struct{}, 1), done: make(chan struct{})}
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
			if err := e.subscribe(ctx, topics, w.news); err != nil && ctx.Err() == nil {
				e.o.Logger.Debug("subscribing to events again", "error", err)
			}
			pause(ctx, subscribeAgain)
		}
	}()
	return w
}

// tellWatches pokes all that watch.
func (e *Engine) tellWatches() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for w := range e.watches {
		poke(w.news)
	}
}

func (w *watch) join() { <-w.done }

// wait returns on news, after d, or with an error when ctx is done.
func (w *watch) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-w.news:
		return nil
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// subscribe pokes for each event until the stream breaks. The stream says
// nothing when it begins to listen, so an event of our own is sent until it
// arrives; what happened before that is news, too.
func (e *Engine) subscribe(ctx context.Context, topics string, news chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	service := e.o.Client.EventService()
	events, errs := service.Subscribe(ctx, fmt.Sprintf("namespace==%q,topic~=%q", e.o.Namespace, "^("+topics+"|"+probeTopic+")$"))

	probe := time.NewTicker(probeEvery)
	defer probe.Stop()
	live := false
	for {
		select {
		case event := <-events:
			if event.Topic != probeTopic {
				poke(news)
			} else if !live {
				live = true
				probe.Stop()
				poke(news)
			}
		case <-probe.C:
			if live {
				continue
			}
			if err := service.Publish(ctx, probeTopic); err != nil {
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
