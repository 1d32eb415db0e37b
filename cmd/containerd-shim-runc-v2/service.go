package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	tasks "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/margolite/margolite/runtime/log"
)

// drainTimeout bounds the wait for a deleted task's last lines, still within this process.
const drainTimeout = 2 * time.Second

// idleTimeout is how long a shim without a task waits for one. containerd asks for the first at
// once, and ends the shim after the last; a containerd killed in between may never return to it.
const idleTimeout = 30 * time.Second

// firstLook and lastLook bound the pause between two looks at the bundle of an ended task.
const (
	firstLook = 5 * time.Second
	lastLook  = 5 * time.Minute
)

// service is containerd's task service, which also keeps logs and ends when it has nothing to do.
type service struct {
	tasks.TTRPCTaskService

	mu    sync.Mutex
	tasks map[string]*running      // by container
	begun map[string]chan struct{} // closed when the creation ends
	idle  *time.Timer              // ends the shim if there are no tasks
	end   func()                   // ends the shim
	over  bool                     // end was called: nothing may begin
}

type running struct {
	bundle string  // exists as long as containerd knows the task
	out    *output // nil: no log here
}

func newTasks(direct tasks.TTRPCTaskService, end func()) *service {
	s := &service{TTRPCTaskService: direct, tasks: make(map[string]*running), begun: make(map[string]chan struct{}), end: end}
	s.idle = time.AfterFunc(idleTimeout, s.endIdle)
	return s
}

func (s *service) endIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.begun) == 0 && len(s.tasks) == 0 {
		s.over = true
		s.end()
	}
}

// begin is called before a task is created, and the returned function when that is over.
func (s *service) begin(id string) (over func(*running, error), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil, shutdown.ErrShutdown
	}
	if s.begun[id] != nil {
		return nil, errgrpc.ToGRPCf(errdefs.ErrAlreadyExists, "task %s", id)
	}
	created := make(chan struct{})
	s.begun[id] = created
	return func(made *running, err error) {
		s.settle(func() {
			delete(s.begun, id)
			close(created)
			if err == nil {
				s.tasks[id] = made
			}
		})
	}, nil
}

func (s *service) await(ctx context.Context, id string) {
	s.mu.Lock()
	created := s.begun[id]
	s.mu.Unlock()
	if created != nil {
		select {
		case <-created:
		case <-ctx.Done():
		}
	}
}

func (s *service) settle(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.idle.Reset(idleTimeout)
}

func (s *service) unthrottle(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tasks[id]; t != nil && t.out != nil {
		t.out.log.Unthrottle()
	}
}

type publisher struct {
	shim.Publisher
	tasks *service
}

func (p publisher) Publish(ctx context.Context, topic string, event events.Event) error {
	if exit, ok := event.(*eventsapi.TaskExit); ok && exit.ID == exit.ContainerID {
		p.tasks.ended(exit.ContainerID)
	}
	return p.Publisher.Publish(ctx, topic, event)
}

// ended starts checking whether containerd still knows an ended task.
func (s *service) ended(id string) {
	s.settle(func() {
		if t := s.tasks[id]; t != nil {
			s.look(id, t, firstLook)
		}
	})
}

// look forgets an ended task once containerd has given it up: a containerd that starts while the
// shim does not respond ends its containers, removes their bundles and never asks for them again.
func (s *service) look(id string, t *running, pause time.Duration) {
	time.AfterFunc(pause, func() {
		_, err := os.Stat(t.bundle)
		s.settle(func() {
			switch {
			case s.tasks[id] != t: // deleted meanwhile
			case errors.Is(err, fs.ErrNotExist):
				delete(s.tasks, id)
			default:
				s.look(id, t, min(2*pause, lastLook))
			}
		})
	})
}

// RegisterTTRPC registers s as the shim's service.
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	tasks.RegisterTTRPCTaskService(server, s)
	return nil
}

// Create undoes a creation whose requester is gone: a restarted containerd gave up the shim.
func (s *service) Create(ctx context.Context, r *tasks.CreateTaskRequest) (*tasks.CreateTaskResponse, error) {
	over, err := s.begin(r.ID)
	if err != nil {
		return nil, err
	}
	created, out, err := s.create(ctx, r)
	over(&running{r.Bundle, out}, err)
	if ctx.Err() == nil {
		return created, err
	}
	if err == nil {
		_, err = s.Delete(context.WithoutCancel(ctx), &tasks.DeleteRequest{ID: r.ID})
	}
	s.endIdle()
	return nil, errors.Join(ctx.Err(), err)
}

// create gives the task pipes that this process reads, if it asks for a log.
func (s *service) create(ctx context.Context, r *tasks.CreateTaskRequest) (*tasks.CreateTaskResponse, *output, error) {
	path, keep, ours := log.ParseURI(r.Stdout)
	if !ours || r.Checkpoint != "" {
		created, err := s.TTRPCTaskService.Create(ctx, r)
		return created, nil, err
	}
	out, err := newOutput(r.Bundle, r.Terminal)
	if err != nil {
		return nil, nil, err
	}
	defer out.unlink()
	r.Stdout, r.Stderr = out.paths()
	kept := log.NewWriter(path, keep)
	_ = kept.Open() // otherwise opened with the first line; a container can run without a log
	created, err := s.TTRPCTaskService.Create(ctx, r)
	if err != nil {
		out.close()
		_ = kept.Close()
		return nil, nil, err
	}
	// The other ends are open: from here on they close when the output ends.
	out.keep(kept)
	return created, out, nil
}

// Delete returns when the task's log is complete. It waits for a task that is being created, whose
// requester has given up and returns to neither call. It first kills a task that never started:
// otherwise containerd's service waits for its output longer than containerd does.
func (s *service) Delete(ctx context.Context, r *tasks.DeleteRequest) (*tasks.DeleteResponse, error) {
	if r.ExecID == "" {
		s.await(ctx, r.ID)
		if now, err := s.State(ctx, &tasks.StateRequest{ID: r.ID}); err == nil {
			switch now.Status {
			case task.Status_CREATED:
				_, _ = s.Kill(ctx, &tasks.KillRequest{ID: r.ID, Signal: uint32(unix.SIGKILL), All: true}) // the next error tells more
			case task.Status_STOPPED:
				s.unthrottle(r.ID) // containerd's service and drainTimeout wait for seconds only
			}
		}
	}
	deleted, err := s.TTRPCTaskService.Delete(ctx, r)
	gone := err == nil || errdefs.IsNotFound(errgrpc.ToNative(err))
	if !gone || r.ExecID != "" {
		return deleted, err
	}
	var ended *running
	s.settle(func() {
		ended = s.tasks[r.ID]
		delete(s.tasks, r.ID)
	})
	if ended != nil && ended.out != nil {
		select {
		case <-ended.out.whole:
		case <-time.After(drainTimeout):
		}
	}
	return deleted, err
}

// Shutdown is requested after each deletion. It must not end the shim while the next container of
// the group is being created: containerd's service counts only existing ones, and the shim would go
// on without its socket.
func (s *service) Shutdown(context.Context, *tasks.ShutdownRequest) (*emptypb.Empty, error) {
	s.endIdle()
	return &emptypb.Empty{}, nil
}
