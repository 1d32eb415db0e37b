package main

import (
	"context"
	"log/slog"

	"github.com/margolite/margolite/agent/clock"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/build"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/store"
)

// limits bound what is accepted from the WFM. Larger data is refused as a whole.
var limits = wfm.Limits{}.WithDefaults()

func uplinkOptions(ctx context.Context, cfg *config.Config) (uplink.Options, error) {
	o := cfg.WFM.Options
	if o.Git.Report.Branch == "" {
		return o, nil
	}
	device, err := deviceOf(ctx, cfg)
	o.Git.Device = device.ID
	return o, err
}

// openUplink creates the way to the WFM for a device with these records, and fills in its clock,
// folder and logger. Nothing is sent yet.
func openUplink(ctx context.Context, cfg *config.Config, logger *slog.Logger, d uplink.Device) (*uplink.Uplink, *clock.Clock, error) {
	o, err := uplinkOptions(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	known, err := uplink.KnownTime(d.Records)
	if err != nil {
		logger.Warn("cannot read the last known time", "error", err)
	}
	d.Dir, d.Clock, d.Logger = cfg.State.Dir, clock.New(systemClock(), build.Time(), known), logger
	u, err := uplink.New(o, d)
	return u, d.Clock, err
}

// noRecords are empty records, to contact the WFM beside a possibly running agent.
type noRecords struct{}

func (noRecords) Setting(string) ([]byte, bool, error) { return nil, false, nil }

func (noRecords) Commit(string, store.Change) error { return nil }
