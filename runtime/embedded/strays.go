package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// strayPatience bounds the time in which all strays must end.
const strayPatience = 30 * time.Second

// records include strays while they are ended: containerd deletes no task without a container.
type records struct {
	containers.Store
	ending bool
}

func (r *records) Get(ctx context.Context, id string) (containers.Container, error) {
	c, err := r.Store.Get(ctx, id)
	if r.ending && errdefs.IsNotFound(err) {
		return containers.Container{ID: id}, nil
	}
	return c, err
}

// endStrays ends what runs without a record after a database was damaged: nothing supervises it, and
// its replacement must not run beside it. Call it before anything else uses the tasks.
func (s *Server) endStrays(ctx context.Context, log *slog.Logger) error {
	tasks := instance[*tasks](s, plugins.RuntimePluginV2, "task")
	all, err := tasks.Tasks(ctx, true)
	if err != nil {
		return fmt.Errorf("cannot list running tasks: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, strayPatience)
	defer cancel()
	var strays []runtime.Task
	for _, task := range all {
		_, err := tasks.records.Get(namespaces.WithNamespace(ctx, task.Namespace()), task.ID())
		switch {
		case errdefs.IsNotFound(err):
			strays = append(strays, task)
		case err != nil:
			return fmt.Errorf("cannot read record of container %s: %w", task.ID(), err)
		}
	}
	tasks.records.ending = true
	defer func() { tasks.records.ending = false }()
	for _, task := range strays {
		log.Warn("killing a task without a record", "container", task.ID())
		if err := kill(namespaces.WithNamespace(ctx, task.Namespace()), task); err != nil {
			log.Warn("cannot kill a task without a record", "container", task.ID(), "error", err)
		}
	}
	for _, task := range strays {
		ctx := namespaces.WithNamespace(ctx, task.Namespace())
		_, err := task.Wait(ctx)
		if err == nil || errdefs.IsNotFound(err) {
			_, err = tasks.Delete(ctx, task.ID())
		}
		if err != nil && !errdefs.IsNotFound(err) {
			log.Warn("cannot remove a task without a record", "container", task.ID(), "error", err)
		}
	}
	return nil
}

func kill(ctx context.Context, task runtime.Task) error {
	if state, err := task.State(ctx); err == nil && state.Status == runtime.PausedStatus {
		if err := task.Resume(ctx); err != nil {
			return err
		}
	}
	if err := task.Kill(ctx, uint32(unix.SIGKILL), true); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}
