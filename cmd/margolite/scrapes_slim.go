//go:build slim

package main

import (
	"context"
	"errors"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/cmd/margolite/config"
)

// metersOf refuses what there is no room for in this flavour.
func metersOf(cfg *config.Config, _ *agent.Options, _ func() *agent.Agent) ([]func(context.Context) error, error) {
	if cfg.Metrics.Listen != "" || cfg.Metrics.OTLP != "" {
		return nil, &hintError{errors.New("the slim flavour has no metrics"), "remove metrics.listen and metrics.otlp, or install the full flavour"}
	}
	return nil, nil
}
