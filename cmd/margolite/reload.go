package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/cmd/margolite/config"
)

// reload takes over a changed configuration at SIGHUP. What runs is not
// touched, and no request or change is cut off. A configuration that is wrong
// changes nothing, and neither does one that says the same.
type reload struct {
	cli     *cli
	started *config.Config // what the agent was started with
	config  *config.Config // in force
	level   *slog.LevelVar
	gate    agent.Gate
	agent   *agent.Agent
	uplink  *uplink.Uplink
	logger  *slog.Logger
}

// run waits for signals until ctx is done.
func (r *reload) run(ctx context.Context) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	defer signal.Stop(signals)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
		}
		if err := r.takeOver(); err != nil {
			r.logger.Error("the configuration is not taken over, the former one stays in force", "error", err)
		}
	}
}

func (r *reload) takeOver() error {
	next, err := r.cli.load(true)
	if err != nil {
		return err
	}
	if err := next.RequireWFM(); err != nil {
		return err
	}
	device, err := deviceOf(next)
	if err != nil {
		return err
	}
	way, err := uplinkOptions(next)
	if err != nil {
		return err
	}
	changed := next.Changed(r.config)
	if slices.Contains(changed.Parts, "wfm") {
		if err := r.uplink.Configure(way); err != nil {
			return fmt.Errorf("cannot take over wfm: %w", err)
		}
	}
	r.level.Set(next.Log.Level)
	r.agent.Configure(settingsOf(next, device, r.gate))
	r.config = next
	r.logger.Info("configuration taken over", "changed", strings.Join(changed.Parts, ", "))
	if later := next.Changed(r.started).Restart; len(later) > 0 {
		r.logger.Warn("part of the configuration takes effect with the next start only", "keys", strings.Join(later, ", "))
	}
	return nil
}
