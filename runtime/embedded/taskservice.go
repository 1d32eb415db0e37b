//go:build !slim

package embedded

import (
	"context"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/margolite/margolite/runtime/containerd"
)

// taskService is that of containerd, whose errors are statuses of gRPC even without a socket.
type taskService struct{ direct tasksapi.TasksClient }

func (t taskService) Get(ctx context.Context, container, exec string) (containerd.Process, error) {
	got, err := t.direct.Get(within(ctx), &tasksapi.GetRequest{ContainerID: container, ExecID: exec})
	if err != nil {
		return containerd.Process{}, errgrpc.ToNative(err)
	}
	p := fromProcess(got.GetProcess())
	p.Container = container
	return p, nil
}

func (t taskService) Create(ctx context.Context, first containerd.Task) error {
	request := &tasksapi.CreateTaskRequest{
		ContainerID: first.Container,
		Stdin:       first.Stdin,
		Stdout:      first.Stdout,
		Stderr:      first.Stderr,
		Terminal:    first.Terminal,
	}
	for _, m := range first.Rootfs {
		request.Rootfs = append(request.Rootfs, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	_, err := t.direct.Create(within(ctx), request)
	return errgrpc.ToNative(err)
}

func (t taskService) Start(ctx context.Context, container, exec string) (uint32, error) {
	got, err := t.direct.Start(within(ctx), &tasksapi.StartRequest{ContainerID: container, ExecID: exec})
	return got.GetPid(), errgrpc.ToNative(err)
}

func (t taskService) Wait(ctx context.Context, container, exec string) (containerd.Exit, error) {
	got, err := t.direct.Wait(within(ctx), &tasksapi.WaitRequest{ContainerID: container, ExecID: exec})
	return containerd.Exit{ExitStatus: got.GetExitStatus(), ExitedAt: fromTime(got.GetExitedAt())}, errgrpc.ToNative(err)
}

func (t taskService) Delete(ctx context.Context, container string) (containerd.Exit, error) {
	return fromDelete(t.direct.Delete(within(ctx), &tasksapi.DeleteTaskRequest{ContainerID: container}))
}

func (t taskService) DeleteProcess(ctx context.Context, container, exec string) (containerd.Exit, error) {
	return fromDelete(t.direct.DeleteProcess(within(ctx), &tasksapi.DeleteProcessRequest{ContainerID: container, ExecID: exec}))
}

func (t taskService) Kill(ctx context.Context, container, exec string, signal uint32, all bool) error {
	_, err := t.direct.Kill(within(ctx), &tasksapi.KillRequest{ContainerID: container, ExecID: exec, Signal: signal, All: all})
	return errgrpc.ToNative(err)
}

func (t taskService) Resume(ctx context.Context, container string) error {
	_, err := t.direct.Resume(within(ctx), &tasksapi.ResumeTaskRequest{ContainerID: container})
	return errgrpc.ToNative(err)
}

func (t taskService) Exec(ctx context.Context, e containerd.Exec) error {
	_, err := t.direct.Exec(within(ctx), &tasksapi.ExecProcessRequest{
		ContainerID: e.Container,
		ExecID:      e.ID,
		Stdin:       e.Stdin,
		Stdout:      e.Stdout,
		Stderr:      e.Stderr,
		Terminal:    e.Terminal,
		Spec:        toAny(e.Spec),
	})
	return errgrpc.ToNative(err)
}

func (t taskService) ResizePty(ctx context.Context, container, exec string, width, height uint32) error {
	_, err := t.direct.ResizePty(within(ctx), &tasksapi.ResizePtyRequest{ContainerID: container, ExecID: exec, Width: width, Height: height})
	return errgrpc.ToNative(err)
}

func (t taskService) CloseIO(ctx context.Context, container, exec string) error {
	_, err := t.direct.CloseIO(within(ctx), &tasksapi.CloseIORequest{ContainerID: container, ExecID: exec, Stdin: true})
	return errgrpc.ToNative(err)
}

func fromDelete(got *tasksapi.DeleteResponse, err error) (containerd.Exit, error) {
	return containerd.Exit{ExitStatus: got.GetExitStatus(), ExitedAt: fromTime(got.GetExitedAt())}, errgrpc.ToNative(err)
}

func fromProcess(p *task.Process) containerd.Process {
	return containerd.Process{
		Container: p.GetID(),
		Pid:       p.GetPid(),
		Status:    containerd.Status(p.GetStatus()),
		Exit:      containerd.Exit{ExitStatus: p.GetExitStatus(), ExitedAt: fromTime(p.GetExitedAt())},
	}
}
