package main

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/margolite/margolite/cmd/margolite/config"
)

// provisionInterval is the time between two looks for provisioning files.
const provisionInterval = 5 * time.Second

// awaitWFM gives the configuration to run with. A device that was told of no WFM
// waits for provisioning files, if there is a place for them, or for somebody who
// corrects the configuration. Nil without an error: it was stopped before.
func (c *cli) awaitWFM(ctx context.Context) (*config.Config, error) {
	cfg, err := c.load(true)
	if err != nil || cfg.WFM.URL != "" {
		return cfg, err
	}
	if !cfg.Provision.Possible() {
		return nil, cfg.RequireWFM()
	}
	level := new(slog.LevelVar)
	level.Set(cfg.Log.Level)
	logger := newLogger(c, cfg, level)
	logger.Info("no WFM is configured, waiting for provisioning files", "from", strings.Join(cfg.Provision.From, ", "))
	ticker := time.NewTicker(provisionInterval)
	defer ticker.Stop()
	said := ""
	for {
		cfg, err := c.enrol(logger)
		switch {
		case err == nil && cfg.WFM.URL != "":
			return cfg, nil
		case err == nil:
			said = ""
		case err.Error() != said: // once, however long it stays
			said = err.Error()
			logger.Error("this device is not enrolled", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-ticker.C:
		}
	}
}

// enrol looks once, and gives the configuration that there is then.
func (c *cli) enrol(logger *slog.Logger) (*config.Config, error) {
	from, err := config.Enrol(c.configFile)
	if err != nil {
		return nil, err
	}
	if from != "" {
		logger.Info("this device is enrolled", "from", from)
	}
	return config.Load(c.configFile)
}
