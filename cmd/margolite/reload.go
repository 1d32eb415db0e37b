package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/runtime/contain"
)

// reload applies a changed configuration at SIGHUP, without touching what runs or cutting off a
// request or change. An invalid configuration changes nothing. An unchanged one makes the next poll
// and retries come soon: something that it refers to may have been fixed.
type reload struct {
	cli     *cli
	signals <-chan os.Signal
	started *config.Config // what the agent was started with
	config  *config.Config // in force
	level   *slog.LevelVar
	agent   *agent.Agent
	uplink  *uplink.Uplink
	service *service
	logger  *slog.Logger
}

func (r *reload) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.signals:
		}
		r.service.reloading()
		if err := contain.Call(func() error { return r.takeOver(ctx) }); err != nil {
			r.agent.Contained("a configuration reload", err)
			r.logger.Error("cannot apply the configuration; the previous one stays in force", "error", err)
		}
		r.service.ready("runs")
	}
}

func (r *reload) takeOver(ctx context.Context) error {
	next, err := r.cli.load(true)
	if err != nil {
		return err
	}
	if err := next.RequireWFM(); err != nil {
		return err
	}
	device, err := deviceOf(ctx, next)
	if err != nil {
		return err
	}
	way, err := uplinkOptions(ctx, next)
	if err != nil {
		return err
	}
	warn(r.logger, next)
	changed := next.Changed(r.config)
	if slices.Contains(changed.Parts, "control") {
		if err := share(socketPath(r.started), next.Control.Group); err != nil {
			return fmt.Errorf("cannot apply control: %w", err)
		}
	}
	if slices.Contains(changed.Parts, "wfm") {
		if next.WFM.URL != r.config.WFM.URL {
			r.agent.Withdraw(ctx)
		}
		if err := r.uplink.Configure(way); err != nil {
			return fmt.Errorf("cannot apply wfm: %w", err)
		}
	}
	r.level.Set(next.Log.Level)
	r.agent.Configure(settingsOf(next, device, gateOf(next)))
	r.config = next
	r.logger.Info("configuration applied", "changed", cmp.Or(strings.Join(changed.Parts, ", "), "nothing"))
	if later := next.Changed(r.started).Restart; len(later) > 0 {
		r.logger.Warn("some changes of the configuration take effect at the next start", "keys", strings.Join(later, ", "))
	}
	return nil
}
