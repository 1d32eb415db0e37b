package container

import (
	"context"
	"errors"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// callTimeout is for a call that has runc do something small, on a slow and busy
// device.
const callTimeout = time.Minute

// guarded are the tasks of containerd, whose shims may stop responding: no call
// waits for such a shim, and one that waits already returns when the grace time of
// its shim is over. The errors are ErrUnresponsive then, and else those of errdefs.
// exec is the ID of a command; "" is the container's own process.
type guarded struct {
	shims *shims
	tasks tasksapi.TasksClient
}

func (c *Containers) tasks() guarded { return guarded{c.shims, c.o.Client.TaskService()} }

// guard makes a call for a container. While it takes long, the shim is asked
// whether it still answers; its grace time starts when it does not.
func guard[T any](ctx context.Context, s *shims, id string, moves bool, f func(context.Context) (T, error)) (T, error) {
	if s.isSilent(id) {
		var none T
		return none, ErrUnresponsive
	}
	defer s.begin(id, moves)()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watching := make(chan struct{})
	defer func() { cancel(nil); <-watching }()
	go func() { // ends with ctx
		defer close(watching)
		for pause(ctx, s.recheck()) {
			if err := s.ping(ctx, id); ctx.Err() == nil {
				s.note(id, err)
			}
			if s.expired(id) {
				cancel(ErrUnresponsive)
			}
		}
	}()
	value, err := await(ctx, f)
	if err != nil && errors.Is(context.Cause(ctx), ErrUnresponsive) {
		err = ErrUnresponsive
	}
	return value, err
}

// limited is guard for a call that has no deadline of its own.
func limited[T any](ctx context.Context, s *shims, id string, moves bool, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return guard(ctx, s, id, moves, f)
}

// native makes the error of a call of containerd's tasks one of errdefs.
func native[T any](value T, err error) (T, error) { return value, errgrpc.ToNative(err) }

// getProcess asks a shim for a process, without a guard.
func getProcess(ctx context.Context, t tasksapi.TasksClient, container, exec string) (*task.Process, error) {
	got, err := native(t.Get(ctx, &tasksapi.GetRequest{ContainerID: container, ExecID: exec}))
	return got.GetProcess(), err
}

func (g guarded) Get(ctx context.Context, container string) (*task.Process, error) {
	answer := g.shims.state(ctx, container)
	return answer.process, answer.err
}

func (g guarded) Create(ctx context.Context, r *tasksapi.CreateTaskRequest) error {
	_, err := guard(ctx, g.shims, r.ContainerID, true, func(ctx context.Context) (*tasksapi.CreateTaskResponse, error) {
		return native(g.tasks.Create(ctx, r))
	})
	return err
}

func (g guarded) Start(ctx context.Context, container, exec string) (pid uint32, err error) {
	got, err := guard(ctx, g.shims, container, exec == "", func(ctx context.Context) (*tasksapi.StartResponse, error) {
		return native(g.tasks.Start(ctx, &tasksapi.StartRequest{ContainerID: container, ExecID: exec}))
	})
	return got.GetPid(), err
}

// Wait returns the exit status. It takes as long as the process runs.
func (g guarded) Wait(ctx context.Context, container, exec string) (int, error) {
	got, err := await(ctx, func(ctx context.Context) (*tasksapi.WaitResponse, error) {
		return native(g.tasks.Wait(ctx, &tasksapi.WaitRequest{ContainerID: container, ExecID: exec}))
	})
	return int(got.GetExitStatus()), err
}

func (g guarded) Delete(ctx context.Context, container string) error {
	_, err := limited(ctx, g.shims, container, true, func(ctx context.Context) (*tasksapi.DeleteResponse, error) {
		return native(g.tasks.Delete(ctx, &tasksapi.DeleteTaskRequest{ContainerID: container}))
	})
	return err
}

func (g guarded) DeleteProcess(ctx context.Context, container, exec string) error {
	return g.do(ctx, container, func(ctx context.Context) error {
		_, err := g.tasks.DeleteProcess(ctx, &tasksapi.DeleteProcessRequest{ContainerID: container, ExecID: exec})
		return err
	})
}

func (g guarded) Kill(ctx context.Context, r *tasksapi.KillRequest) error {
	return g.do(ctx, r.ContainerID, func(ctx context.Context) error {
		_, err := g.tasks.Kill(ctx, r)
		return err
	})
}

func (g guarded) Resume(ctx context.Context, container string) error {
	return g.do(ctx, container, func(ctx context.Context) error {
		_, err := g.tasks.Resume(ctx, &tasksapi.ResumeTaskRequest{ContainerID: container})
		return err
	})
}

func (g guarded) Exec(ctx context.Context, r *tasksapi.ExecProcessRequest) error {
	return g.do(ctx, r.ContainerID, func(ctx context.Context) error {
		_, err := g.tasks.Exec(ctx, r)
		return err
	})
}

func (g guarded) ResizePty(ctx context.Context, r *tasksapi.ResizePtyRequest) error {
	return g.do(ctx, r.ContainerID, func(ctx context.Context) error {
		_, err := g.tasks.ResizePty(ctx, r)
		return err
	})
}

// CloseIO tells a process that nothing more comes on its standard input.
func (g guarded) CloseIO(ctx context.Context, container, exec string) error {
	return g.do(ctx, container, func(ctx context.Context) error {
		_, err := g.tasks.CloseIO(ctx, &tasksapi.CloseIORequest{ContainerID: container, ExecID: exec, Stdin: true})
		return err
	})
}

// do makes a call that answers nothing and neither begins nor ends the task.
func (g guarded) do(ctx context.Context, container string, f func(context.Context) error) error {
	_, err := limited(ctx, g.shims, container, false, func(ctx context.Context) (struct{}, error) { return native(struct{}{}, f(ctx)) })
	return err
}
