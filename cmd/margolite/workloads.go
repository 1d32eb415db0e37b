package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/cmd/command"
	"github.com/margolite/margolite/cmd/margolite/config"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/embedded"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/runtime/log"
	"github.com/margolite/margolite/runtime/network"
)

// workloads is the runtime with the containerd below it.
type workloads struct {
	Engine *runtime.Engine
	claim  io.Closer // see claim
	client *client.Client
	server *embedded.Server // nil if containerd is external
}

// openWorkloads starts the embedded containerd, or connects to the configured one, and creates an
// engine for it. contained receives its panics; may be nil.
func openWorkloads(ctx context.Context, cfg *config.Config, logger *slog.Logger, contained func(what string, err error)) (*workloads, error) {
	setUmask()
	for _, dir := range []string{cfg.State.Dir, cfg.State.Run} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("cannot create directory %s: %w", dir, err)
		}
	}
	held, err := claim()
	if err != nil {
		return nil, err
	}
	w := &workloads{claim: held}
	if err := w.connect(ctx, cfg, logger); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	if err := boundDirs(cfg); err != nil {
		logger.Warn("logs and lock files of workloads may take all memory", "error", err)
	}
	w.Engine, err = runtime.New(runtime.Options{
		Options: container.Options{
			Client:      w.client,
			Namespace:   cfg.Runtime.Namespace,
			StateDir:    cfg.State.Dir,
			RunDir:      cfg.State.Run,
			LogKeeper:   w.logKeeper(),
			Init:        embedded.FindInit(),
			LogDir:      cfg.Runtime.Logs.Dir,
			LogKeep:     log.Keep{MaxSize: cfg.Runtime.Logs.MaxSize, MaxFile: cfg.Runtime.Logs.MaxFile},
			Environment: collectorEnvironment(cfg.Collector),
			Certificate: cfg.Collector.Certificate,
			Logger:      logger,
		},
		Images: image.Options{
			Registries: cfg.Registries,
			Preload:    cfg.Runtime.Preload,
			Keys:       cfg.Policy.Keys,
			AtOnce:     cfg.Runtime.Pulls,
			MinRate:    cmp.Or(cfg.Runtime.MinPullRate, -1), // 0 would be the usual rate,
			Reserve:    max(cfg.State.Reserve, 1),           // and here the usual reserve
		},
		Publish:   network.Publish(cfg.Runtime.Publish),
		OnStep:    killAtStep(),
		Contained: contained,
	})
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// logKeeper keeps containers' output if the shim is not ours: the small program, else this one.
func (w *workloads) logKeeper() string {
	if w.server != nil && w.server.OwnShim() {
		return ""
	}
	self, _ := os.Executable()
	return cmp.Or(embedded.FindInit(), self, os.Args[0])
}

// setUmask sets Docker's umask before anything is created: workloads inherit it. The inherited one
// is arbitrary; with none the agent's socket would briefly be open to everyone.
func setUmask() { unix.Umask(0o022) }

func (w *workloads) connect(ctx context.Context, cfg *config.Config, logger *slog.Logger) (err error) {
	if cfg.Runtime.Containerd != config.Embedded {
		w.client, err = containerd.Connect(ctx, cfg.Runtime.Containerd, cfg.Runtime.Namespace)
		return err
	}
	w.server, err = embedded.Start(ctx, embedded.Options{
		Root:   filepath.Join(cfg.State.Dir, "containerd"),
		State:  filepath.Join(cfg.State.Run, "containerd"),
		Logger: logger,

		Check:     checkDatabase(ctx),
		Namespace: cfg.Runtime.Namespace,
	})
	if err != nil {
		return err
	}
	w.client, err = w.server.Client(ctx, cfg.Runtime.Namespace)
	return err
}

// Close leaves containers running.
func (w *workloads) Close() error {
	var errs []error
	if w.Engine != nil {
		w.Engine.Close()
	}
	if w.client != nil {
		errs = append(errs, w.client.Close())
	}
	if w.server != nil {
		errs = append(errs, w.server.Close())
	}
	return errors.Join(append(errs, w.claim.Close())...)
}

// claimed is the name of an abstract socket: one per network namespace, gone with its process.
const claimed = "@margolite"

// claim makes this process the only one that manages containers here. Bridges, rules and control
// groups of a machine belong to one margolite: two would remove each other's, even with separate
// directories. Anyone may open an abstract socket, including a workload in the device's network; a
// holder that could not use the claim is ignored.
func claim() (io.Closer, error) {
	l, err := net.Listen("unix", claimed)
	if !errors.Is(err, unix.EADDRINUSE) {
		if err != nil {
			return nil, fmt.Errorf("cannot claim the containers of this machine: %w", err)
		}
		return l, nil
	}
	holder, known := claimant()
	if known && (!holder.Privileged() || !mayHaveContainers(holder.PID)) {
		return io.NopCloser(nil), nil
	}
	process := ""
	if known {
		process = fmt.Sprintf(" (process %d)", holder.PID)
	}
	return nil, command.Hint(
		fmt.Errorf("cannot manage the containers of this machine: another margolite%s does", process),
		"stop it, or use it: name its configuration with --config FILE",
	)
}

func claimant() (holder control.Caller, known bool) {
	conn, err := net.Dial("unix", claimed)
	if err != nil {
		return holder, false
	}
	defer conn.Close()
	return control.Peer(conn)
}

// mayHaveContainers reports whether a process could manage containers here: with CAP_SYS_ADMIN in
// this user namespace. Root in a container has it only if the site allows that. An ended process
// could not.
func mayHaveContainers(pid int32) bool {
	proc := fmt.Sprintf("/proc/%d/", pid)
	theirs, err := os.Readlink(proc + "ns/user")
	own, errOwn := os.Readlink("/proc/self/ns/user")
	status, errStatus := os.ReadFile(proc + "status")
	if errors.Join(err, errOwn, errStatus) != nil || theirs != own {
		return false
	}
	_, rest, _ := strings.Cut(string(status), "\nCapEff:")
	text, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
	return err == nil && set&(1<<unix.CAP_SYS_ADMIN) != 0
}
