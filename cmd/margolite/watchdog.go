package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
)

const (
	// watchEvery is how often it is looked whether the agent gets on, where nobody
	// wants to know it more often.
	watchEvery = time.Minute
	// watchTries are how many looks in a row have to say that it does not.
	watchTries = 3
	// watchAnswer is how long a look may take.
	watchAnswer = 30 * time.Second
	// maxStacks bounds, in bytes, what is logged of the goroutines of an agent that
	// is stuck.
	maxStacks = 128 << 10
	// readyMost is how long the service manager waits for workloads at most: one
	// that hangs is no reason to call the agent one that did not start.
	readyMost = time.Minute
)

// watchdog ends an agent that is stuck, so that it is started again: workloads do
// not notice. As long as it gets on the service manager is told so, which would
// end it if this were stuck as well.
type watchdog struct {
	check   func() error // fails, or does not return, where the agent is stuck
	service *service
	logger  *slog.Logger
	every   time.Duration // between two looks
	answer  time.Duration // that one may take
}

func newWatchdog(check func() error, s *service, logger *slog.Logger) *watchdog {
	w := &watchdog{check: check, service: s, logger: logger, every: watchEvery, answer: watchAnswer}
	if s.watchdog > 0 { // three looks within its time, each with an answer
		w.every = min(w.every, s.watchdog/4)
		w.answer = min(w.answer, s.watchdog/4)
	}
	return w
}

// run looks until ctx is done. The error says that the agent is stuck.
func (w *watchdog) run(ctx context.Context) error {
	ticker := time.NewTicker(w.every)
	defer ticker.Stop()
	answers := make(chan error, 1)
	asked := false // and not answered yet: the goroutine is stuck with it
	for failures := 0; ; {
		if !asked {
			go func() { answers <- w.check() }() // ends with the agent's being stuck, if it is
		}
		var err error
		select {
		case <-ctx.Done():
			return nil
		case err = <-answers:
			asked = false
		case <-time.After(w.answer):
			asked, err = true, fmt.Errorf("no answer within %v", w.answer)
		}
		if err == nil {
			failures = 0
			w.service.alive()
		} else if failures++; failures >= watchTries {
			stacks := make([]byte, maxStacks)
			w.logger.Error("the agent is stuck; it exits to be restarted", "error", err, "stacks", string(stacks[:runtime.Stack(stacks, true)]))
			return fmt.Errorf("the agent is stuck: %w", err)
		} else {
			w.logger.Warn("the agent makes no progress", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// announce says that the agent is ready once workloads are back and the control
// socket answers.
func announce(ctx context.Context, s *service, back <-chan struct{}, socket string) error {
	select {
	case <-ctx.Done():
		return nil
	case <-back:
	case <-time.After(readyMost):
	}
	_, _ = control.Dial(socket).Capabilities(ctx) // whatever the answer, somebody gives it
	if ctx.Err() == nil {
		s.ready("runs")
	}
	return nil
}

// endWith ends the process when ctx is done and what works in it does not stop: it
// may be killed at any moment, and one that is stuck does not heed ctx. The
// returned function says that it has stopped.
func (c *cli) endWith(ctx context.Context) (stopped func()) {
	done := make(chan struct{})
	context.AfterFunc(ctx, func() {
		select {
		case <-done:
		case <-time.After(stopGrace):
			if !c.lasting.Load() {
				os.Exit(command.Failed)
			}
		}
	})
	return func() { close(done) }
}
