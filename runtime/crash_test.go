package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/mount"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/test/containerdtest"
	"github.com/margolite/margolite/test/expect"
)

// errKilled is what a step panics with in place of a SIGKILL.
var errKilled = errors.New("killed")

// killedAt calls change with a new engine that is killed at its n-th
// opportunity, before or after a step; sequences that run side by side end at
// their next one. It tells where that was; "" when change got through before.
func (r *rig) killedAt(n int, change func(*runtime.Engine) error) (at string) {
	r.Helper()
	var mu sync.Mutex
	r.onStep = func(step string) {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 {
			if at == "" {
				at = step
			}
			panic(errKilled)
		}
		n--
	}
	e := r.engine()
	defer func() {
		r.onStep = nil
		e.Close()
		if p := recover(); p != nil && contain.Caught(p).Value != any(errKilled) {
			panic(p)
		}
	}()
	expect.Check(r, change(e))
	return at
}

// crashing is a project with a dependency, a volume, a port and a job.
const crashing = `
services:
  web: {image: BUSYBOX, environment: {N: "1"}, command: ["httpd", "-f", "-p", "80"], ports: ["18084:80"], depends_on: [db]}
  db: {image: BUSYBOX, volumes: ["data:/data"]}
  job: {image: BUSYBOX, command: ["sh", "-c", "echo ran >> /data/log"], volumes: ["data:/data"]}
volumes: {data: {}}
`

func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: kills at every point")
	}
	onEach(t, func(t *testing.T, r *rig) {
		stride := 2 // before a step everything is as it was after the one before
		if strings.HasSuffix(t.Name(), "external") {
			stride = 6 // the steps are the same
		}
		apply := func(file string) func(*runtime.Engine) error {
			p := r.load(r.engine(), "crash", file)
			return func(e *runtime.Engine) error { return e.Apply(t.Context(), p, runtime.ApplyOptions{}) }
		}
		install := apply(crashing)
		update := apply(strings.Replace(crashing, `N: "1"`, `N: "2"`, 1))
		remove := func(e *runtime.Engine) error { return e.Remove(t.Context(), "crash") }
		do := func(change func(*runtime.Engine) error) {
			expect.Check(t, change(r.engine()))
		}
		running := func(after string) map[string]runtime.ObservedContainer {
			c := r.containers(r.engine(), "crash") // fails when a service has two
			if len(c) != 3 || c["web"].State != runtime.Running || c["db"].State != runtime.Running || c["job"].State != runtime.Done {
				t.Fatalf("killed %s: %+v", after, c)
			}
			expect.Eventually(r, "the port answers", func() bool { return answers("127.0.0.1:18084") })
			expect.Equal(t, len(r.shims()), 1, "killed %s: shims", after)
			return c
		}

		// killed kills a change at one opportunity after the other, of which there are some at least.
		killed := func(what string, some int, change func() func(*runtime.Engine) error, then func(at string)) {
			n := 1
			for at := r.killedAt(n, change()); at != ""; at = r.killedAt(n, change()) {
				then(at)
				n += stride
			}
			expect.True(t, n >= some, "the %s has %d opportunities only", what, n)
		}

		killed("installation", 18, func() func(*runtime.Engine) error { return install }, func(at string) {
			do(install)
			running(at)
			do(remove)
			r.expectNothingLeft()
		})
		before := running("")
		installed := before["web"].ID
		to := install
		killed("update", 12, func() func(*runtime.Engine) error {
			if to = install; before["web"].ID == installed {
				to = update
			}
			return to
		}, func(at string) {
			do(to)
			after := running(at)
			expect.Equal(t, after["db"].Pid, before["db"].Pid, "killed %s: process of what did not change", at)
			expect.Equal(t, after["web"].ID == before["web"].ID, false, "killed %s: the update is missing", at)
			before = after
		})
		killed("removal", 14, func() func(*runtime.Engine) error { return remove }, func(at string) {
			do(remove)
			r.expectNothingLeft()
			do(install)
		})
		r.expectNothingLeft()
	})
}

func TestKilledWithinAStep(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: damage at every point")
	}
	const file = `services: {app: {image: BUSYBOX, restart: always, volumes: ["data:/data"]}}
volumes: {data: {}}`
	tests := []struct {
		name string
		harm func(r *rig, ctx context.Context, c runtime.ObservedContainer) error
	}{
		{"a task that was created and not started", func(r *rig, ctx context.Context, c runtime.ObservedContainer) error {
			r.deleteTask(c.ID)
			mounts, err := r.client.SnapshotService("overlayfs").Mounts(ctx, c.ID)
			if err != nil {
				return err
			}
			_, err = r.client.TaskService().Create(ctx, &tasksapi.CreateTaskRequest{ContainerID: c.ID, Rootfs: mount.ToProto(mounts)})
			return err
		}},
		{"a task that ended and was not deleted", func(r *rig, _ context.Context, c runtime.ObservedContainer) error {
			return syscall.Kill(c.Pid, syscall.SIGKILL)
		}},
		{"a record without a root file system", func(r *rig, ctx context.Context, c runtime.ObservedContainer) error {
			r.deleteTask(c.ID)
			return r.client.SnapshotService("overlayfs").Remove(ctx, c.ID)
		}},
		{"a root file system without a record", func(r *rig, ctx context.Context, c runtime.ObservedContainer) error {
			r.deleteTask(c.ID)
			return r.client.ContainerService().Delete(ctx, c.ID)
		}},
		{"processes that nobody knows of, after the directories of shims were wiped", func(r *rig, _ context.Context, _ runtime.ObservedContainer) error {
			for _, pid := range r.shims() {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					return err
				}
			}
			return nil
		}},
	}
	onEach(t, func(t *testing.T, r *rig) {
		ctx := containerdtest.Context(t)
		for i, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				name := fmt.Sprintf("within%d", i)
				p := r.load(r.engine(), name, file)
				r.apply(r.engine(), p)
				before := r.containers(r.engine(), name)["app"]
				expect.Check(t, test.harm(r, ctx, before))
				expect.Eventually(r, "the harm shows", func() bool { return r.containers(r.engine(), name)["app"].State != runtime.Running })
				e := r.engine()
				r.apply(e, p)
				if strays, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", before.Pid)); err == nil && strings.Contains(string(strays), before.ID) {
					t.Error("the former process still runs")
				}
				if after := r.containers(e, name)["app"]; after.State != runtime.Running || after.ID != before.ID || after.Pid == before.Pid {
					t.Errorf("before %+v, after %+v", before, after)
				}
				expect.Check(t, e.Remove(t.Context(), name))
				r.expectNothingLeft()
			})
		}
	})
}

// deleteTask ends the task of a container behind the runtime's back.
func (r *rig) deleteTask(id string) {
	r.Helper()
	ctx := containerdtest.Context(r)
	tasks := r.client.TaskService()
	expect.Value(tasks.Kill(ctx, &tasksapi.KillRequest{ContainerID: id, Signal: 9, All: true}))(r)
	expect.Value(tasks.Wait(ctx, &tasksapi.WaitRequest{ContainerID: id}))(r)
	expect.Value(tasks.Delete(ctx, &tasksapi.DeleteTaskRequest{ContainerID: id}))(r)
}
