package external

import (
	"context"

	"github.com/margolite/margolite/runtime/containerd"
)

type tasks struct{ wire *wire }

const tasksService = "tasks.v1.Tasks/"

func (r tasks) Get(ctx context.Context, container, exec string) (got containerd.Process, err error) {
	err = r.wire.call(ctx, tasksService+"Get", texts(container, exec), only(process(&got)))
	got.Container = container
	return got, err
}

func (r tasks) Create(ctx context.Context, t containerd.Task) error {
	return r.wire.call(ctx, tasksService+"Create", func(c *coder) {
		c.text(1, &t.Container)
		list(c, 3, &t.Rootfs, mount)
		streams(c, 4, &t.Streams)
	}, nothing)
}

func (r tasks) Start(ctx context.Context, container, exec string) (pid uint32, err error) {
	err = r.wire.call(ctx, tasksService+"Start", texts(container, exec), func(c *coder) { c.uint32(1, &pid) })
	return pid, err
}

func (r tasks) Wait(ctx context.Context, container, exec string) (got containerd.Exit, err error) {
	err = r.wire.call(ctx, tasksService+"Wait", texts(container, exec), func(c *coder) { exit(c, 1, &got) })
	return got, err
}

func (r tasks) Delete(ctx context.Context, container string) (got containerd.Exit, err error) {
	err = r.wire.call(ctx, tasksService+"Delete", texts(container), func(c *coder) { exit(c, 3, &got) })
	return got, err
}

func (r tasks) DeleteProcess(ctx context.Context, container, exec string) (got containerd.Exit, err error) {
	err = r.wire.call(ctx, tasksService+"DeleteProcess", texts(container, exec), func(c *coder) { exit(c, 3, &got) })
	return got, err
}

func (r tasks) Kill(ctx context.Context, container, exec string, signal uint32, all bool) error {
	return r.wire.call(ctx, tasksService+"Kill", func(c *coder) {
		c.text(1, &container)
		c.text(2, &exec)
		c.uint32(3, &signal)
		c.bool(4, &all)
	}, nothing)
}

func (r tasks) Resume(ctx context.Context, container string) error {
	return r.wire.call(ctx, tasksService+"Resume", texts(container), nothing)
}

func (r tasks) Exec(ctx context.Context, e containerd.Exec) error {
	return r.wire.call(ctx, tasksService+"Exec", func(c *coder) {
		c.text(1, &e.Container)
		streams(c, 2, &e.Streams)
		c.any(6, &e.Spec)
		c.text(7, &e.ID)
	}, nothing)
}

func (r tasks) ResizePty(ctx context.Context, container, exec string, width, height uint32) error {
	return r.wire.call(ctx, tasksService+"ResizePty", func(c *coder) {
		c.text(1, &container)
		c.text(2, &exec)
		c.uint32(3, &width)
		c.uint32(4, &height)
	}, nothing)
}

func (r tasks) CloseIO(ctx context.Context, container, exec string) error {
	return r.wire.call(ctx, tasksService+"CloseIO", func(c *coder) {
		c.text(1, &container)
		c.text(2, &exec)
		stdin := true
		c.bool(3, &stdin)
	}, nothing)
}

// process has what containerd calls its ID, and for a first process is the container's; it does not tell that of others.
func process(of *containerd.Process) message {
	return func(c *coder) {
		c.text(2, &of.Container)
		c.uint32(3, &of.Pid)
		c.int32(4, (*int32)(&of.Status))
		exit(c, 9, &of.Exit)
	}
}

// exit is two fields.
func exit(c *coder, first int, of *containerd.Exit) {
	c.uint32(first, &of.ExitStatus)
	c.time(first+1, &of.ExitedAt)
}

// streams is four fields.
func streams(c *coder, first int, of *containerd.Streams) {
	c.text(first, &of.Stdin)
	c.text(first+1, &of.Stdout)
	c.text(first+2, &of.Stderr)
	c.bool(first+3, &of.Terminal)
}
