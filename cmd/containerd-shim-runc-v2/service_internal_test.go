package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	tasks "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/margolite/margolite/test/expect"
)

// direct is a task service that keeps nothing but ids.
type direct struct {
	tasks.TTRPCTaskService
	ids  map[string]bool
	slow time.Duration // a creation
}

func (d *direct) Create(_ context.Context, r *tasks.CreateTaskRequest) (*tasks.CreateTaskResponse, error) {
	time.Sleep(d.slow)
	if r.Bundle == "" {
		return nil, errors.New("no bundle")
	}
	d.ids[r.ID] = true
	return &tasks.CreateTaskResponse{}, nil
}

func (d *direct) State(context.Context, *tasks.StateRequest) (*tasks.StateResponse, error) {
	return nil, errdefs.ErrNotImplemented
}

func (d *direct) Delete(_ context.Context, r *tasks.DeleteRequest) (*tasks.DeleteResponse, error) {
	if !d.ids[r.ID] {
		return nil, errgrpc.ToGRPC(errdefs.ErrNotFound)
	}
	delete(d.ids, r.ID)
	return &tasks.DeleteResponse{}, nil
}

// A containerd that is killed may forget a shim, which nobody would end then.
func TestAShimWithNothingToDoEnds(t *testing.T) {
	type use struct {
		*service
		*direct
		t *testing.T
	}
	create := func(u use, ctx context.Context, bundle string) error {
		_, err := u.service.Create(ctx, &tasks.CreateTaskRequest{ID: "web", Bundle: bundle})
		return err
	}
	remove := func(u use) error {
		_, err := u.service.Delete(u.t.Context(), &tasks.DeleteRequest{ID: "web"})
		return err
	}
	const never = -1
	for name, c := range map[string]struct {
		use  func(u use)
		ends time.Duration // after the use
	}{
		"nobody asks for a task": {func(use) {}, idleTimeout},
		"a task runs": {func(u use) {
			expect.OK(u.t, create(u, u.t.Context(), "bundle"))
		}, never},
		"its last task is deleted": {func(u use) {
			expect.OK(u.t, errors.Join(create(u, u.t.Context(), "bundle"), remove(u)))
		}, idleTimeout},
		"a task cannot be created": {func(u use) {
			expect.True(u.t, create(u, u.t.Context(), "") != nil, "it is created")
		}, idleTimeout},
		"a creation takes long": {func(u use) {
			u.slow = 3 * idleTimeout
			expect.OK(u.t, create(u, u.t.Context(), "bundle"))
		}, never},
		"it is to end for the last task, and the next one is on its way": {func(u use) {
			time.AfterFunc(time.Second, func() { _, _ = u.Shutdown(u.t.Context(), nil) })
			u.slow = 2 * time.Second
			expect.OK(u.t, create(u, u.t.Context(), "bundle"))
		}, never},
		"a task comes while it ends": {func(u use) {
			_, _ = u.Shutdown(u.t.Context(), nil)
			expect.Error(u.t, create(u, u.t.Context(), "bundle"), shutdown.ErrShutdown, "another shim can take it")
		}, 0},
		"who creates a task is gone before there is one": {func(u use) {
			ctx, gone := context.WithCancel(u.t.Context())
			time.AfterFunc(time.Second, gone)
			u.slow = 2 * time.Second
			expect.Error(u.t, create(u, ctx, "bundle"), context.Canceled, "creation")
			expect.Equal(u.t, u.ids["web"], false, "it is created")
		}, 0},
		"a creation that nobody awaits fails": {func(u use) {
			ctx, gone := context.WithCancel(u.t.Context())
			gone()
			expect.True(u.t, create(u, ctx, "") != nil, "it is created")
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &direct{ids: make(map[string]bool)}
				var ended time.Time
				s := newTasks(d, sync.OnceFunc(func() { ended = time.Now() }))
				c.use(use{s, d, t})
				last := time.Now()
				time.Sleep(time.Hour)
				synctest.Wait()
				switch {
				case c.ends == never && !ended.IsZero():
					t.Errorf("it ends %s after the last use", ended.Sub(last))
				case c.ends != never && !ended.Equal(last.Add(c.ends)):
					t.Errorf("it ends at %s, want %s after %s", ended, c.ends, last)
				}
			})
		})
	}
}
