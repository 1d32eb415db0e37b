package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/runtime/contain"
)

const provisionInterval = 5 * time.Second

// awaitWFM returns the configuration to run with. A device without a WFM waits for provisioning
// files, if there is a place for them, or for a corrected configuration. Nil without an error: it
// was stopped before.
func (c *cli) awaitWFM(ctx context.Context, manager *service) (*config.Config, error) {
	cfg, err := c.load(true)
	if err != nil || cfg.WFM.URL != "" {
		return cfg, err
	}
	if !cfg.Provision.Possible() {
		return nil, cfg.RequireWFM()
	}
	logger := newLogger(c, cfg, cfg.Log.Level)
	logger.Info("no WFM is configured; waiting for provisioning files", "from", strings.Join(cfg.Provision.From, ", "))
	manager.ready("waiting for provisioning files")
	ticker := time.NewTicker(provisionInterval)
	defer ticker.Stop()
	said := ""
	for {
		manager.alive()
		var cfg *config.Config
		err := contain.Call(func() (err error) { // the files are untrusted
			cfg, err = c.enrol(logger)
			return err
		})
		switch {
		case err == nil && cfg.WFM.URL != "":
			return cfg, nil
		case err == nil:
			said = ""
		case err.Error() != said: // once, however long it stays
			said = err.Error()
			attrs := []any{"error", err}
			var p *contain.Panic
			if errors.As(err, &p) {
				attrs = append(attrs, "stack", p.Stack)
			}
			logger.Error("cannot enrol this device", attrs...)
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-ticker.C:
		}
	}
}

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
