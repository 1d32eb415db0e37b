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

// reload takes over a changed configuration at SIGHUP. What runs is not
// touched, and no request or change is cut off. A configuration that is wrong
// changes nothing. With one that says the same the WFM is asked soon, and what
// failed is tried again soon: somebody may have mended what it names.
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

// run waits for signals until ctx is done.
func (r *reload) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.signals:
		}
		r.service.reloading()
		if err := contain.Call(func() error { return r.takeOver(ctx) }); err != nil {
			r.agent.Contained("a configuration that is taken over", err)
			r.logger.Error("the configuration is not taken over, the former one stays in force", "error", err)
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
	gate, err := gateOf(next)
	if err != nil {
		return fmt.Errorf("cannot take over policy: %w", err)
	}
	warn(r.logger, next)
	changed := next.Changed(r.config)
	if slices.Contains(changed.Parts, "control") {
		if err := share(socketPath(r.started), next.Control.Group); err != nil {
			return fmt.Errorf("cannot take over control: %w", err)
		}
	}
	if slices.Contains(changed.Parts, "wfm") {
		if next.WFM.URL != r.config.WFM.URL {
			r.agent.Withdraw(ctx)
		}
		if err := r.uplink.Configure(way); err != nil {
			return fmt.Errorf("cannot take over wfm: %w", err)
		}
	}
	r.level.Set(next.Log.Level)
	r.agent.Configure(settingsOf(next, device, gate))
	r.config = next
	r.logger.Info("configuration taken over", "changed", cmp.Or(strings.Join(changed.Parts, ", "), "nothing"))
	if later := next.Changed(r.started).Restart; len(later) > 0 {
		r.logger.Warn("part of the configuration takes effect with the next start only", "keys", strings.Join(later, ", "))
	}
	return nil
}
