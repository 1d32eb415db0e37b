package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	containerd "github.com/containerd/containerd/v2/client"

	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/embedded"
	"github.com/margolite/margolite/runtime/external"
	"github.com/margolite/margolite/runtime/image"
)

// workloads is the runtime with the containerd below it.
type workloads struct {
	Engine *runtime.Engine
	client *containerd.Client
	server *embedded.Server // nil where containerd is not ours
}

// openWorkloads starts the embedded containerd, or connects to the configured
// one, and makes an engine for it.
func openWorkloads(ctx context.Context, cfg *config.Config, logger *slog.Logger) (*workloads, error) {
	for _, dir := range []string{cfg.State.Dir, cfg.State.Run} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("cannot create directory %s: %w", dir, err)
		}
	}
	w := &workloads{}
	if err := w.connect(ctx, cfg, logger); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	registries := make(map[string]image.Registry, len(cfg.Registries))
	for host, r := range cfg.Registries {
		registries[host] = image.Registry(r)
	}
	var err error
	w.Engine, err = runtime.New(runtime.Options{
		Client:     w.client,
		Namespace:  cfg.Runtime.Namespace,
		StateDir:   cfg.State.Dir,
		RunDir:     cfg.State.Run,
		Registries: registries,
		Logger:     logger,
		OnStep:     killAtStep(),
	})
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (w *workloads) connect(ctx context.Context, cfg *config.Config, logger *slog.Logger) (err error) {
	if cfg.Runtime.Containerd != config.Embedded {
		w.client, err = external.Connect(ctx, cfg.Runtime.Containerd, cfg.Runtime.Namespace)
		return err
	}
	w.server, err = embedded.Start(ctx, embedded.Options{
		Root:   filepath.Join(cfg.State.Dir, "containerd"),
		State:  filepath.Join(cfg.State.Run, "containerd"),
		Logger: logger,
	})
	if errors.Is(err, embedded.ErrNotEmbedded) {
		return &hintError{err, "set runtime.containerd in the configuration"}
	}
	if err != nil {
		return err
	}
	w.client, err = w.server.Client(ctx, cfg.Runtime.Namespace)
	return err
}

// Close leaves containers running.
func (w *workloads) Close() error {
	var errs []error
	if w.client != nil {
		errs = append(errs, w.client.Close())
	}
	if w.server != nil {
		errs = append(errs, w.server.Close())
	}
	return errors.Join(errs...)
}
