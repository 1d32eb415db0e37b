package runtime_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"google.golang.org/grpc"

	"github.com/margolite/margolite/runtime/containerd"
)

// counting is a containerd that counts what it is asked for.
type counting struct {
	containerd.Client
	lists, records atomic.Int64 // of containers: how often they were listed, and records that were read
	tasks          atomic.Int64 // tasks that were asked for
}

// counts are the figures of a counting at one moment.
type counts struct{ lists, records, tasks int64 }

func (c *counting) count() counts {
	return counts{c.lists.Load(), c.records.Load(), c.tasks.Load()}
}

func (c counts) since(before counts) counts {
	return counts{c.lists - before.lists, c.records - before.records, c.tasks - before.tasks}
}

func (c counts) String() string {
	return fmt.Sprintf("%d lists of containers, %d records, %d tasks", c.lists, c.records, c.tasks)
}

func (c *counting) ContainerService() containers.Store {
	return countingContainers{c.Client.ContainerService(), c}
}

func (c *counting) TaskService() tasksapi.TasksClient {
	return countingTasks{c.Client.TaskService(), c}
}

type countingContainers struct {
	containers.Store
	of *counting
}

func (s countingContainers) Get(ctx context.Context, id string) (containers.Container, error) {
	s.of.records.Add(1)
	return s.Store.Get(ctx, id)
}

func (s countingContainers) List(ctx context.Context, filters ...string) ([]containers.Container, error) {
	list, err := s.Store.List(ctx, filters...)
	s.of.lists.Add(1)
	s.of.records.Add(int64(len(list)))
	return list, err
}

type countingTasks struct {
	tasksapi.TasksClient
	of *counting
}

func (s countingTasks) Get(ctx context.Context, r *tasksapi.GetRequest, o ...grpc.CallOption) (*tasksapi.GetResponse, error) {
	s.of.tasks.Add(1)
	return s.TasksClient.Get(ctx, r, o...)
}

// count makes the rig's containerd one that counts.
func (r *rig) count() *counting {
	c := &counting{Client: r.client}
	r.client = c
	return c
}

// settled waits until nothing was asked for a while, and returns the figures.
func (r *rig) settled(c *counting) counts {
	r.Helper()
	const quiet = 500 * time.Millisecond
	last, since := c.count(), time.Now()
	for end := time.Now().Add(patience); time.Since(since) < quiet; time.Sleep(quiet / 10) {
		if now := c.count(); now != last {
			last, since = now, time.Now()
		}
		if time.Now().After(end) {
			r.Fatalf("containerd is asked without end: %s", last)
		}
	}
	return last
}
