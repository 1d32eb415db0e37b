package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/build"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/store"
)

// socketLook is how often the agent checks whether its control socket was deleted.
const socketLook = 5 * time.Second

// run is the daemon: it opens the parts of the agent in order of dependency, and closes them in
// reverse. The store comes first: its lock keeps out a second agent.
func (c *cli) run(ctx context.Context, _ []string) (err error) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP) // first: unhandled, it ends the process
	defer signal.Stop(signals)
	manager := openService(c.env)
	defer manager.close()
	cfg, err := c.awaitWFM(ctx, manager)
	if err != nil || cfg == nil {
		return err
	}
	setUmask()
	c.boundMemory(ctx)
	level := new(slog.LevelVar)
	level.Set(cfg.Log.Level)
	logger := newLogger(c, cfg, level)
	// Libraries would bypass it, and a server can trigger net/http's messages.
	log.SetFlags(0)
	log.SetOutput(slog.NewLogLogger(logger.Handler(), slog.LevelDebug).Writer())
	manager.logger = logger
	warn(logger, cfg)
	var a *agent.Agent // created after the runtime and the uplink, which call it

	records, err := openStore(ctx, cfg, limits.Bundle)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	device, err := deviceOf(ctx, cfg)
	if device, err = identified(cfg, device, err); err != nil {
		return err
	}
	var found findings
	found.device(ctx, cfg)
	for _, f := range found {
		if f.Result == failed {
			logger.Error("this device is not ready", "object", f.Object, "problem", f.Text, "mend", f.Mend)
		}
	}
	contained := func(what string, err error) { a.Contained(what, err) }
	workloads, err := openWorkloads(ctx, cfg, logger, contained)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, workloads.Close()) }()
	socket, err := control.Listen(socketPath(cfg))
	if err != nil {
		return err
	}
	if err := share(socketPath(cfg), cfg.Control.Group); err != nil {
		return errors.Join(err, socket.Close())
	}

	starts, err := noteStart(cfg.State.Run)
	if err != nil {
		logger.Warn("cannot count the starts of the agent", "error", err)
	}
	crash, err := keepCrash(cfg.State.Run)
	if err != nil {
		logger.Warn("cannot find out how the previous process ended", "error", err)
	}
	way, present, err := openUplink(ctx, cfg, logger, uplink.Device{
		Records: records, Spool: records.Incoming(),
		Silence: func() time.Duration { return a.Silence().Hold().Downtime },
		Wake:    func() { a.Wake() },

		Contained: contained,
	})
	if err != nil {
		return err
	}
	options := agent.Options{
		Settings: settingsOf(cfg, device, gateOf(cfg)),
		Program: control.AgentStatus{
			Version: build.Version(), Commit: build.Commit(), Started: time.Now().UTC(),
		},
		WFM:      way,
		Store:    records,
		Runtime:  workloads.Engine,
		Facts:    discover(ctx, cfg, "/"),
		Watch:    capability.Watch,
		StateDir: cfg.State.Dir, RunDir: cfg.State.Run,
		Logger:     logger,
		Now:        present.Now,
		ClockWrong: func() bool { _, wrong := present.Wrong(); return wrong },
		Meter:      workloads.Engine,
		Reserve:    cfg.State.Reserve,
		Starts:     starts,
		Crash:      crash,
	}
	meters := metersOf(cfg, &options, func() *agent.Agent { return a })
	a = agent.New(options)
	logger.Info("margolite is running", "version", build.Version(), "device", device.ID, "wfm", cfg.WFM.URL)
	r := &reload{cli: c, signals: signals, started: cfg, config: cfg, level: level, agent: a, uplink: way, service: manager, logger: logger}
	workloads.Engine.LeaveAlone(a.Fragile()...) // before anything is brought back
	program, err := programSpans()
	if err != nil {
		logger.Warn("cannot release unneeded memory of the program", "error", err)
	}
	saver := &thrift{stirred: a.Stirred(), program: program}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return records.Guard(ctx) })
	defer c.endWith(ctx)()
	defer context.AfterFunc(ctx, manager.stopping)()
	g.Go(func() error { return workloads.Engine.Run(ctx) })
	g.Go(func() error { return way.Run(ctx) })
	g.Go(func() error { return a.Run(ctx) })
	looks := time.NewTicker(socketLook)
	defer looks.Stop()
	g.Go(func() error { return control.NewServer(a, logger).Run(ctx, socket, looks.C) })
	g.Go(func() error { return r.run(ctx) })
	g.Go(func() error { return saver.run(ctx) })
	g.Go(func() error { return newWatchdog(a.Alive, manager, logger).run(ctx) })
	g.Go(func() error { return announce(ctx, manager, workloads.Engine.Back(), socketPath(cfg)) })
	for _, meter := range meters {
		g.Go(func() error { return meter(ctx) })
	}
	err = g.Wait()
	logger.Info("margolite is stopping; workloads keep running")
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func settingsOf(cfg *config.Config, device agent.Device, gate agent.Gate) agent.Settings {
	reports := cfg.Reports
	reports.Reasons = reports.Reasons || cfg.WFM.Git.Report.Branch != "" // required by that form of the standard (ST-11)
	settings := agent.Settings{
		Device: device,
		URL:    cfg.WFM.URL,
		Poll:   cfg.Poll,
		Settle: cfg.Runtime.Settle,
		Gate:   gate,

		Reports:    reports,
		MaxTimeout: cfg.Runtime.MaxTimeout,
		Basis:      basisOf(cfg),
	}
	if !cfg.Policy.Allow.UnsignedImages {
		settings.ImageKeys = cfg.Policy.ImageKeys
	}
	if !cfg.Policy.Allow.Unsigned {
		settings.Packages = &image.Trust{Keys: cfg.Policy.ImageKeys, Notation: cfg.Policy.Notation}
	}
	return settings
}

// basisOf identifies the configuration and keys by which deployments are judged.
func basisOf(cfg *config.Config) string {
	h := sha256.New()
	sum := cfg.Sum()
	h.Write(sum[:])
	files := slices.Clone(cfg.Policy.Keys)
	for _, images := range slices.Sorted(maps.Keys(cfg.Policy.ImageKeys)) {
		files = append(files, cfg.Policy.ImageKeys[images]...)
	}
	if dir := cfg.Policy.Notation; dir != "" {
		for _, pattern := range []string{"trustpolicy*.json", "truststore/x509/ca/*/*", "crl/*"} {
			found, _ := filepath.Glob(filepath.Join(dir, pattern)) // the pattern is valid
			files = append(files, found...)
		}
	}
	for _, file := range files {
		info, err := os.Stat(file) // the user of the file reports read errors
		if err == nil {
			fmt.Fprintln(h, file, info.Size(), info.ModTime().UnixNano())
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

func openStore(ctx context.Context, cfg *config.Config, bundle int64) (*store.Store, error) {
	if err := os.MkdirAll(cfg.State.Dir, 0o711); err != nil {
		return nil, fmt.Errorf("cannot create state directory %s: %w", cfg.State.Dir, err)
	}
	if err := finishRestore(cfg.State.Dir); err != nil {
		return nil, err
	}
	s, err := store.Open(databaseFile(cfg), store.Options{
		OnCommit:      killAfterCommit(),
		IncomingBytes: bundle,
		Reserve:       cfg.State.Reserve,
		Passing:       passingSettings(),
		Apart:         doApart(ctx),
	})
	if errors.Is(err, store.ErrLocked) {
		return nil, command.Hint(err, "stop the other margolite that uses "+cfg.State.Dir)
	}
	if err == nil {
		_ = os.RemoveAll(stagedDir(cfg.State.Dir) + ".new") // left by a power cut before a restore was decided
	}
	return s, err
}

func passingSettings() []string {
	return slices.Concat(agent.PassingSettings(), uplink.PassingSettings())
}

func warn(logger *slog.Logger, cfg *config.Config) {
	for _, w := range cfg.Warnings() {
		logger.Warn("the configuration uses a key that is no longer supported", "warning", w)
	}
}

func newLogger(c *cli, cfg *config.Config, level slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(c.err, o))
	}
	return slog.New(slog.NewTextHandler(c.err, o))
}
