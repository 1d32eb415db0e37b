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
	// watchEvery is the default interval of checks whether the agent makes progress.
	watchEvery = time.Minute
	// watchTries is how many checks in a row must fail.
	watchTries = 3
	// watchAnswer bounds one check.
	watchAnswer = 30 * time.Second
	// maxStacks bounds the logged stacks of a stuck agent in bytes.
	maxStacks = 128 << 10
	// readyMost bounds how long the service manager waits for workloads: one that hangs does not
	// mean that the agent failed to start.
	readyMost = time.Minute
)

// watchdog ends a stuck agent so that it is restarted; workloads do not notice. While there is
// progress it notifies the service manager, which would end the agent if the watchdog were stuck
// too.
type watchdog struct {
	check   func() error // fails or hangs if the agent is stuck
	service *service
	logger  *slog.Logger
	every   time.Duration // between two checks
	answer  time.Duration // limit of one check
}

func newWatchdog(check func() error, s *service, logger *slog.Logger) *watchdog {
	w := &watchdog{check: check, service: s, logger: logger, every: watchEvery, answer: watchAnswer}
	if s.watchdog > 0 { // three checks within its limit, each with an answer
		w.every = min(w.every, s.watchdog/4)
		w.answer = min(w.answer, s.watchdog/4)
	}
	return w
}

func (w *watchdog) run(ctx context.Context) error {
	ticker := time.NewTicker(w.every)
	defer ticker.Stop()
	answers := make(chan error, 1)
	asked := false // a check has not returned yet
	for failures := 0; ; {
		if !asked {
			go func() { answers <- w.check() }() // hangs as long as the agent does
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

// announce reports that the agent is ready once workloads are back and the control socket answers.
func announce(ctx context.Context, s *service, back <-chan struct{}, socket string) error {
	select {
	case <-ctx.Done():
		return nil
	case <-back:
	case <-time.After(readyMost):
	}
	_, _ = control.Dial(socket).Capabilities(ctx) // any answer will do
	if ctx.Err() == nil {
		s.ready("runs")
	}
	return nil
}

// endWith ends the process if it does not stop after ctx is done: it may be killed at any moment,
// and a stuck one ignores ctx. The returned function reports that it has stopped.
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
