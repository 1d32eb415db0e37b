package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/build"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/store"
)

// gcPercent is how much garbage there may be, in percent of what is in use: half
// of Go's own choice. An agent at rest has little to collect.
const gcPercent = 50

// run is the daemon: it opens what the agent needs, in the order in which one
// thing rests on the other, and closes it in the opposite order. The store
// comes first: its lock keeps a second agent away from everything else.
func (c *cli) run(ctx context.Context, args []string) (err error) {
	f := c.flags("run")
	if err := c.parseNone(f, args); err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP) // first of all: it ends who does not wait for it
	defer signal.Stop(signals)
	cfg, err := c.awaitWFM(ctx)
	if err != nil || cfg == nil {
		return err
	}
	if own, _ := lookup(c.env, "GOGC"); own == "" {
		debug.SetGCPercent(gcPercent)
	}
	level := new(slog.LevelVar)
	level.Set(cfg.Log.Level)
	logger := newLogger(c, cfg, level)
	// Libraries that know no logger would write past it, and what they say is
	// for a server to choose: net/http tells of each answer that nobody asked for.
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(logger.Handler(), slog.LevelDebug).Writer())
	device, err := deviceOf(cfg)
	if err != nil {
		return err
	}

	records, err := openStore(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	for _, p := range deviceProblems(ctx, cfg) {
		logger.Error("this device is not ready", "object", p.object, "problem", p.text, "mend", p.mend)
	}
	workloads, err := openWorkloads(ctx, cfg, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, workloads.Close()) }()
	gate, err := gateOf(cfg)
	if err != nil {
		return err
	}
	socket, err := control.Listen(socketPath(cfg))
	if err != nil {
		return err
	}
	if err := share(socketPath(cfg), cfg.Control.Group); err != nil {
		return errors.Join(err, socket.Close())
	}

	var a *agent.Agent // silences the way to the WFM, which it needs first, and is woken by it
	way, present, err := openUplink(cfg, logger, uplink.Device{
		Records: records, Spool: records.Incoming(),
		Silence: func() time.Duration { return a.Silence().Hold().Downtime },
		Wake:    func() { a.Wake() },
	})
	if err != nil {
		return err
	}
	a = agent.New(agent.Options{
		Settings: settingsOf(cfg, device, gate),
		Program: control.AgentStatus{
			Version: build.Version(), Commit: build.Commit(), Flavour: build.Flavour, Started: time.Now().UTC(),
		},
		WFM:      way,
		Store:    records,
		Runtime:  workloads.Engine,
		Facts:    discover(cfg),
		Watch:    capability.Watch,
		StateDir: cfg.State.Dir, RunDir: cfg.State.Run,
		Logger:     logger,
		Now:        present.Now,
		ClockWrong: func() bool { _, wrong := present.Wrong(); return wrong },
	})
	logger.Info("margolite runs", "version", build.Version(), "flavour", build.Flavour, "device", device.ID, "wfm", cfg.WFM.URL)
	r := &reload{cli: c, signals: signals, started: cfg, config: cfg, level: level, agent: a, uplink: way, logger: logger}
	workloads.Engine.LeaveAlone(a.Fragile()...) // before anything is brought back
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return workloads.Engine.Run(ctx) })
	g.Go(func() error { return way.Run(ctx) })
	g.Go(func() error { return a.Run(ctx) })
	g.Go(func() error { return control.NewServer(a, logger).Run(ctx, socket) })
	g.Go(func() error { return r.run(ctx) })
	err = g.Wait()
	logger.Info("margolite stops; workloads keep running")
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// settingsOf are what an agent can take over while it runs.
func settingsOf(cfg *config.Config, device agent.Device, gate agent.Gate) agent.Settings {
	return agent.Settings{
		Device: device,
		URL:    cfg.WFM.URL,
		Poll:   pace.Rules{Interval: cfg.Poll.Interval, Windows: cfg.Poll.Windows, Downtime: cfg.Poll.Downtime},
		Settle: cfg.Runtime.Settle,
		Gate:   gate,

		ImageKeys: cfg.Policy.ImageKeys,
	}
}

func openStore(cfg *config.Config) (*store.Store, error) {
	if err := os.MkdirAll(cfg.State.Dir, 0o711); err != nil {
		return nil, fmt.Errorf("cannot create state directory %s: %w", cfg.State.Dir, err)
	}
	s, err := store.Open(filepath.Join(cfg.State.Dir, "margolite.db"), store.Options{
		OnCommit:      killAfterCommit(),
		IncomingBytes: 2 * cfg.WFM.Limits.Bundle, // the bundle that comes, and what is left of the one before
		Reserve:       cfg.State.Reserve,
	})
	if errors.Is(err, store.ErrLocked) {
		return nil, &hintError{err, "another margolite runs on " + cfg.State.Dir + "; stop it first"}
	}
	return s, err
}

func newLogger(c *cli, cfg *config.Config, level slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(c.err, o))
	}
	return slog.New(slog.NewTextHandler(c.err, o))
}
