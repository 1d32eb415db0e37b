package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/runtime/contain"
)

const (
	// plugged is the delay of a look after an event: devices appear in parts, and drivers later.
	plugged = 5 * time.Second
	// pluggedAgain is the least time between changes: a loose contact must not keep the WFM busy.
	pluggedAgain = time.Minute
)

// watcher looks at the machine on events, and tells of a changed document (CAP-03).
type watcher struct {
	*base
	watch   func(ctx context.Context, changed func()) error
	differs func()
	loop    *loop

	poked chan struct{}
}

func newWatcher(b *base, watch func(ctx context.Context, changed func()) error, l *loop, differs func()) *watcher {
	return &watcher{base: b, watch: watch, differs: differs, loop: l, poked: make(chan struct{}, 1)}
}

// run watches until ctx is done. Without a source of events, polls look at the machine.
func (w *watcher) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := contain.Call(func() error { return w.watch(ctx, func() { poke(w.poked) }) })
		w.mistakes.note("device watch", err)
		if err != nil && ctx.Err() == nil {
			w.logger.Debug("the machine is looked at with each poll alone", "error", err)
		}
		return nil
	})
	g.Go(func() error {
		w.follow(ctx)
		return nil
	})
	return g.Wait()
}

func (w *watcher) follow(ctx context.Context) {
	before := w.document()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.poked:
		}
		if pace.Sleep(ctx, plugged, nil) != nil {
			return
		}
		now := w.document()
		if now == nil || bytes.Equal(now, before) {
			continue
		}
		before = now
		w.logger.Info("the capabilities of this device have changed")
		w.differs()
		if pace.Sleep(ctx, pluggedAgain, nil) != nil {
			return
		}
	}
}

func (w *watcher) document() json.RawMessage {
	w.loop.works()
	defer w.loop.waits()
	var doc json.RawMessage
	err := contain.Call(func() (err error) {
		doc, err = Describe(w.settings.Load().Device, w.facts, w.logger)
		return err
	})
	w.mistakes.note("device check", err)
	if err != nil {
		return nil // the poll reports it
	}
	return doc
}
