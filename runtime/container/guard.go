package container

import (
	"context"
	"errors"
	"time"

	"github.com/margolite/margolite/runtime/containerd"
)

// callTimeout is for a call that has runc do something small, on a slow and busy
// device.
const callTimeout = time.Minute

// guarded are the tasks of containerd, whose shims may stop responding: no call
// waits for such a shim, and one that waits already returns when the grace time of
// its shim is over. The errors are ErrUnresponsive then.
type guarded struct {
	shims *shims
	tasks containerd.Tasks
}

var _ containerd.Tasks = guarded{}

func (c *Containers) tasks() containerd.Tasks {
	return guarded{c.shims, c.o.Client.TaskService()}
}

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

// limitedErr is limited for a call that answers nothing.
func limitedErr(ctx context.Context, s *shims, id string, f func(context.Context) error) error {
	_, err := limited(ctx, s, id, false, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

func (g guarded) Get(ctx context.Context, container, exec string) (containerd.Process, error) {
	if exec == "" {
		answer := g.shims.state(ctx, container)
		return answer.process, answer.err
	}
	return guard(ctx, g.shims, container, false, func(ctx context.Context) (containerd.Process, error) { return g.tasks.Get(ctx, container, exec) })
}

func (g guarded) Create(ctx context.Context, t containerd.Task) error {
	_, err := guard(ctx, g.shims, t.Container, true, func(ctx context.Context) (struct{}, error) { return struct{}{}, g.tasks.Create(ctx, t) })
	return err
}

func (g guarded) Start(ctx context.Context, container, exec string) (uint32, error) {
	return guard(ctx, g.shims, container, exec == "", func(ctx context.Context) (uint32, error) { return g.tasks.Start(ctx, container, exec) })
}

// Wait takes as long as the process runs.
func (g guarded) Wait(ctx context.Context, container, exec string) (containerd.Exit, error) {
	return await(ctx, func(ctx context.Context) (containerd.Exit, error) { return g.tasks.Wait(ctx, container, exec) })
}

func (g guarded) Delete(ctx context.Context, container string) (containerd.Exit, error) {
	return limited(ctx, g.shims, container, true, func(ctx context.Context) (containerd.Exit, error) { return g.tasks.Delete(ctx, container) })
}

func (g guarded) DeleteProcess(ctx context.Context, container, exec string) (containerd.Exit, error) {
	return limited(ctx, g.shims, container, false, func(ctx context.Context) (containerd.Exit, error) {
		return g.tasks.DeleteProcess(ctx, container, exec)
	})
}

func (g guarded) Kill(ctx context.Context, container, exec string, signal uint32, all bool) error {
	return limitedErr(ctx, g.shims, container, func(ctx context.Context) error { return g.tasks.Kill(ctx, container, exec, signal, all) })
}

func (g guarded) Resume(ctx context.Context, container string) error {
	return limitedErr(ctx, g.shims, container, func(ctx context.Context) error { return g.tasks.Resume(ctx, container) })
}

func (g guarded) Exec(ctx context.Context, e containerd.Exec) error {
	return limitedErr(ctx, g.shims, e.Container, func(ctx context.Context) error { return g.tasks.Exec(ctx, e) })
}

func (g guarded) ResizePty(ctx context.Context, container, exec string, width, height uint32) error {
	return limitedErr(ctx, g.shims, container, func(ctx context.Context) error {
		return g.tasks.ResizePty(ctx, container, exec, width, height)
	})
}

func (g guarded) CloseIO(ctx context.Context, container, exec string) error {
	return limitedErr(ctx, g.shims, container, func(ctx context.Context) error { return g.tasks.CloseIO(ctx, container, exec) })
}
