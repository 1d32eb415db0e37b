package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/cmd/margolite/config"
)

// clear removes everything that runs on this device, after asking, and what remains in the kernel:
// links, rules, control groups. Volumes, images and records stay: a restarted agent restores all of
// it.
func (c *cli) clear(f *command.Flags) command.Action {
	var yes bool
	yesFlag(f, &yes)
	return func(ctx context.Context, _ []string) error {
		cfg, err := c.load(false)
		if err != nil {
			return err
		}
		if _, err := os.Stat(cfg.State.Dir); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(c.err, "There is nothing to remove: %s does not exist.\n", cfg.State.Dir)
			return nil
		}
		if os.Geteuid() != 0 {
			return command.Hint(errors.New("cannot remove workloads: only root can"), asRoot)
		}
		if err := c.confirm(ctx, yes, "Stop and remove all workloads of this device?", "nothing was removed", "repeat this with --yes"); err != nil {
			return err
		}
		w, err := openWorkloads(ctx, cfg, slog.New(slog.DiscardHandler), nil)
		if err != nil {
			return err
		}
		c.withdraw(ctx, cfg)
		projects, err := w.Engine.Clear(ctx)
		for _, name := range projects {
			fmt.Fprintf(c.out, "removed %s\n", name)
		}
		if err == nil { // nothing is left that could write there
			err = unboundDirs(cfg)
		}
		return errors.Join(err, w.Close())
	}
}

// withdraw tells the WFM, if possible, that this device is decommissioned.
func (c *cli) withdraw(ctx context.Context, cfg *config.Config) {
	told, err := func() (told bool, err error) {
		if cfg.WFM.URL == "" {
			return false, nil
		}
		records, err := openStore(ctx, cfg, limits.Bundle)
		if err != nil {
			return false, err
		}
		defer func() { err = errors.Join(err, records.Close()) }()
		way, _, err := openUplink(ctx, cfg, slog.New(slog.DiscardHandler), uplink.Device{Records: records})
		if err != nil {
			return false, err
		}
		return agent.Withdraw(ctx, records, way, time.Now())
	}()
	switch {
	case err != nil:
		fmt.Fprintf(plainWriter{c.err}, "cannot tell the WFM that this device is decommissioned: %v\n", err)
	case told:
		fmt.Fprintln(c.out, "The WFM knows that this device is decommissioned.")
	}
}
