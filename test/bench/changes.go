package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
)

// publish makes the application greet otherwise, and returns how long it took
// until the WFM heard that this is installed.
func (s *subject) publish(ctx context.Context, greeting string) (time.Duration, error) {
	d := s.Deployment(deploymentID, map[string]any{"GREETING": greeting, "PORT": port, "TAG": imageVersion})
	begun := time.Now()
	done, err := s.Publish(d)
	if err != nil {
		return 0, err
	}
	if err := s.Control().Sync(ctx); err != nil {
		return 0, err
	}
	heard, err := s.Await(ctx, deploymentID, margo.Installed, done.Version)
	if err != nil {
		return 0, err
	}
	return heard.Time.Sub(begun), nil
}

// greets waits for the application to answer with a greeting.
func (s *subject) greets(ctx context.Context, greeting string) error {
	return plant.Eventually(ctx, func() error {
		a, err := plant.Ask(ctx, port)
		if err == nil && a.Greeting != greeting {
			err = fmt.Errorf("the application greets with %q, want %q", a.Greeting, greeting)
		}
		return err
	})
}

// install installs the application for the first time.
func (s *subject) install(ctx context.Context) (install, error) {
	before, err := s.flushed()
	if err != nil {
		return install{}, err
	}
	var i install
	if i.Took, err = s.publish(ctx, "Hello"); err != nil {
		return i, err
	}
	after, err := s.rest(ctx)
	if err != nil {
		return i, err
	}
	i.Written = after.since(before)
	return i, s.greets(ctx, "Hello") // which the application writes down
}

// updates changes a parameter again and again, with the images in place.
func (s *subject) updates(ctx context.Context) (updates, error) {
	before, err := s.flushed()
	if err != nil {
		return updates{}, err
	}
	var times []time.Duration
	var greeting string
	for i := range s.Rounds {
		greeting = fmt.Sprintf("Hello %d", i)
		took, err := s.publish(ctx, greeting)
		if err != nil {
			return updates{}, err
		}
		if err := s.Quiet(ctx); err != nil {
			return updates{}, err
		}
		times = append(times, took)
	}
	after, err := s.rest(ctx)
	if err != nil {
		return updates{}, err
	}
	u := updates{Median: median(times), Max: slices.Max(times), Written: after.since(before).each(s.Rounds)}
	if u.Written.Agent == 0 {
		return u, errors.New("updates write nothing: the kernel does not count what is written there; choose another medium with --dir")
	}
	return u, s.greets(ctx, greeting) // what the WFM heard is true
}

// polls polls while nothing changes.
func (s *subject) polls(ctx context.Context) (polls, error) {
	before, err := s.flushed()
	if err != nil {
		return polls{}, err
	}
	logged, err := os.Stat(s.LogFile())
	if err != nil {
		return polls{}, err
	}
	cpu, err := plant.ProcessorTime(s.Agent())
	if err != nil {
		return polls{}, err
	}
	for range s.Polls {
		if err := s.Control().Sync(ctx); err != nil {
			return polls{}, err
		}
	}
	spent, err := plant.ProcessorTime(s.Agent())
	if err != nil {
		return polls{}, err
	}
	after, err := s.rest(ctx) // what they may have put off
	if err != nil {
		return polls{}, err
	}
	loggedThen, err := os.Stat(s.LogFile())
	if err != nil {
		return polls{}, err
	}
	return polls{CPU: spent - cpu, Written: after.since(before), Logged: loggedThen.Size() - logged.Size()}, nil
}
