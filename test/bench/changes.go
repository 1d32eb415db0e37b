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
	"github.com/margolite/margolite/test/wfmsim"
)

// publish makes the application greet otherwise, as apply does it.
func (s *subject) publish(ctx context.Context, greeting string) (time.Duration, error) {
	return s.apply(ctx, s.Deployment(deploymentID, map[string]any{"GREETING": greeting, "PORT": port, "TAG": imageVersion}))
}

// apply publishes a deployment, and returns how long it took until the WFM heard that
// it is installed.
func (s *subject) apply(ctx context.Context, d wfmsim.Deployment) (time.Duration, error) {
	begun := time.Now()
	done, err := s.Publish(d)
	if err != nil {
		return 0, err
	}
	if err := s.Control().Sync(ctx); err != nil {
		return 0, err
	}
	heard, err := s.Await(ctx, d.ID, margo.Installed, done.Version)
	if err != nil {
		return 0, err
	}
	return heard.Time.Sub(begun), nil
}

// writes is what is written while something is done, and until the device is at rest again.
func (s *subject) writes(ctx context.Context, do func() error) (written, error) {
	before, err := s.flushed()
	if err != nil {
		return written{}, err
	}
	if err := do(); err != nil {
		return written{}, err
	}
	after, err := s.rest(ctx)
	return after.since(before), err
}

// install installs the application for the first time.
func (s *subject) install(ctx context.Context) (i install, err error) {
	i.Written, err = s.writes(ctx, func() (err error) {
		i.Took, err = s.publish(ctx, "Hello")
		return err
	})
	if err != nil {
		return i, err
	}
	_, err = plant.Visit(ctx, port, "Hello") // which the application writes down
	return i, err
}

// updates changes a parameter again and again, with the images in place.
func (s *subject) updates(ctx context.Context) (updates, error) {
	var times []time.Duration
	var greeting string
	written, err := s.writes(ctx, func() error {
		for i := range s.Rounds {
			greeting = fmt.Sprintf("Hello %d", i)
			took, err := s.publish(ctx, greeting)
			if err != nil {
				return err
			}
			if err := s.Quiet(ctx); err != nil {
				return err
			}
			times = append(times, took)
		}
		return nil
	})
	if err != nil {
		return updates{}, err
	}
	u := updates{Median: median(times), Max: slices.Max(times), Written: written.each(s.Rounds)}
	if u.Written.Agent == 0 {
		return u, errors.New("updates write nothing: the kernel does not count what is written there; choose another medium with --dir")
	}
	_, err = plant.Visit(ctx, port, greeting) // what the WFM heard is true
	return u, err
}

// polls polls while nothing changes.
func (s *subject) polls(ctx context.Context) (p polls, err error) {
	logged, err := os.Stat(s.LogFile())
	if err != nil {
		return p, err
	}
	p.Written, err = s.writes(ctx, func() error {
		before, err := plant.ProcessorTime(s.Agent())
		if err != nil {
			return err
		}
		for range s.Polls {
			if err := s.Control().Sync(ctx); err != nil {
				return err
			}
		}
		spent, err := plant.ProcessorTime(s.Agent())
		p.CPU = spent - before
		return err
	})
	if err != nil {
		return p, err
	}
	now, err := os.Stat(s.LogFile())
	if err != nil {
		return p, err
	}
	p.Logged = now.Size() - logged.Size()
	return p, nil
}
