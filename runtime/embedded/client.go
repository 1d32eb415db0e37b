//go:build !slim

package embedded

import (
	"context"
	"fmt"

	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	official "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/margolite/margolite/runtime/containerd"
)

// client is containerd's own, with services that it calls directly.
type client struct {
	*official.Client
	address string
}

func (c client) DiffService() diff.Applier { return c.Client.DiffService() }

func (c client) EventService() containerd.Events { return c.Client.EventService() }

func (c client) TaskService() containerd.Tasks { return taskCalls{c.Client.TaskService()} }

func (c client) Plugins(ctx context.Context, filters ...string) ([]*introspectionapi.Plugin, error) {
	answer, err := c.IntrospectionService().Plugins(ctx, filters...)
	if err != nil {
		return nil, fmt.Errorf("cannot list parts of containerd: %w", err)
	}
	return answer.Plugins, nil
}

func (c client) Address() string { return c.address }

// taskCalls is the task service, whose errors are statuses of gRPC even without a socket.
type taskCalls struct{ direct tasksapi.TasksClient }

func (t taskCalls) Get(ctx context.Context, r *tasksapi.GetRequest) (*tasksapi.GetResponse, error) {
	return native(t.direct.Get(ctx, r))
}

func (t taskCalls) List(ctx context.Context, r *tasksapi.ListTasksRequest) (*tasksapi.ListTasksResponse, error) {
	return native(t.direct.List(ctx, r))
}

func (t taskCalls) Create(ctx context.Context, r *tasksapi.CreateTaskRequest) (*tasksapi.CreateTaskResponse, error) {
	return native(t.direct.Create(ctx, r))
}

func (t taskCalls) Start(ctx context.Context, r *tasksapi.StartRequest) (*tasksapi.StartResponse, error) {
	return native(t.direct.Start(ctx, r))
}

func (t taskCalls) Wait(ctx context.Context, r *tasksapi.WaitRequest) (*tasksapi.WaitResponse, error) {
	return native(t.direct.Wait(ctx, r))
}

func (t taskCalls) Delete(ctx context.Context, r *tasksapi.DeleteTaskRequest) (*tasksapi.DeleteResponse, error) {
	return native(t.direct.Delete(ctx, r))
}

func (t taskCalls) Kill(ctx context.Context, r *tasksapi.KillRequest) error {
	_, err := native(t.direct.Kill(ctx, r))
	return err
}

func (t taskCalls) Resume(ctx context.Context, r *tasksapi.ResumeTaskRequest) error {
	_, err := native(t.direct.Resume(ctx, r))
	return err
}

func (t taskCalls) Exec(ctx context.Context, r *tasksapi.ExecProcessRequest) error {
	_, err := native(t.direct.Exec(ctx, r))
	return err
}

func (t taskCalls) DeleteProcess(ctx context.Context, r *tasksapi.DeleteProcessRequest) (*tasksapi.DeleteResponse, error) {
	return native(t.direct.DeleteProcess(ctx, r))
}

func (t taskCalls) ResizePty(ctx context.Context, r *tasksapi.ResizePtyRequest) error {
	_, err := native(t.direct.ResizePty(ctx, r))
	return err
}

func (t taskCalls) CloseIO(ctx context.Context, r *tasksapi.CloseIORequest) error {
	_, err := native(t.direct.CloseIO(ctx, r))
	return err
}

func native[T any](answer T, err error) (T, error) { return answer, errgrpc.ToNative(err) }
