package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/tree"
)

const (
	startTimeout = 2 * time.Minute  // of one task, on a slow and busy device
	killTimeout  = 30 * time.Second // from SIGKILL to the end
	burialPoll   = 50 * time.Millisecond
	// finishTimeout is how much longer than its caller a creation or deletion may take.
	finishTimeout = 20 * time.Second
	createTimeout = startTimeout + finishTimeout // of one call
	// maxLostShims limits how many shims that a container was to share may end in a row. The
	// pauses between them double: containerd may have to clean up after a killed one.
	maxLostShims = 7
)

type tasks struct{ *shims }

func (c *Container) setTask(t *task.Process) {
	switch t.GetStatus() {
	case task.Status_RUNNING:
		c.State, c.Pid = Running, int(t.Pid)
	case task.Status_PAUSED, task.Status_PAUSING:
		c.State, c.Pid = Paused, int(t.Pid)
	case task.Status_STOPPED:
		c.State, c.ExitCode, c.ExitedAt = Stopped, int(t.ExitStatus), t.GetExitedAt().AsTime()
	}
}

// isUp reports whether a process runs or is paused.
func isUp(t *task.Process) bool {
	return t.GetStatus() == task.Status_RUNNING || t.GetStatus() == task.Status_PAUSED
}

// Start leaves a running container as it is, and replaces a task that ended or never started.
func (c *Containers) Start(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := c.sweepOnce(ctx)
	if err == nil {
		err = c.tasks.untilClear(ctx, id, func() error {
			return c.shims.with(ctx, id, func() error { return c.start(ctx, id) })
		})
	}
	if err != nil {
		return fmt.Errorf("cannot start container %s: %w", id, err)
	}
	return nil
}

func (c *Containers) start(ctx context.Context, id string) error {
	switch state := c.shims.state(ctx, id); {
	case errors.Is(state.err, ErrUnresponsive):
		return state.err
	case state.err == nil && isUp(state.value):
		return nil
	}
	if err := c.tasks.delete(ctx, id); err != nil {
		return err
	}

	record, labels, err := c.read(ctx, id)
	if err != nil {
		return err
	}
	if labels.Stopping {
		if err := c.setLabel(ctx, id, keyStopping, ""); err != nil {
			return err
		}
	}
	if err := c.prepareStart(ctx, id, labels); err != nil {
		return err
	}
	joined, ipc, err := c.findJoined(ctx, labels)
	if err != nil {
		return err
	}
	if err := c.renew(ctx, record, labels.Devices, joined); err != nil {
		return err
	}
	if err := c.shareMemory(id, labels, ipc); err != nil {
		return err
	}
	unbind, err := c.bindForStart(id, labels)
	if err != nil {
		return err
	}
	defer unbind()
	snapshotter := c.o.Client.SnapshotService(record.Snapshotter)
	mounts, err := snapshotter.Mounts(ctx, record.SnapshotKey)
	if errdefs.IsNotFound(err) || err == nil && isLost(mounts) { // a Delete that did not finish, or a power cut
		mounts, err = prepareSnapshot(ctx, snapshotter, record.SnapshotKey, labels)
	}
	if err != nil {
		return err
	}
	request := &tasksapi.CreateTaskRequest{ContainerID: id, Rootfs: mount.ToProto(mounts), Terminal: labels.TTY}
	if err := c.connect(request, labels.Details); err != nil {
		return err
	}
	if err := c.shims.awaitGroup(ctx, labels.Project); err != nil {
		return err
	}
	c.cgroups.creating.RLock()
	killed, err := c.tasks.runc.unblocked(ctx, "create", id, cancelledIdle, func(ctx context.Context) error {
		_, err := call(ctx, c.shims, createTimeout, c.shims.api().Create, request)
		return err
	})
	c.cgroups.creating.RUnlock()
	if killed {
		// A shim of containerd 1.6 does not respond while runc creates a task: ask it again.
		c.shims.check(context.WithoutCancel(ctx), id)
	}
	if err != nil {
		return c.tasks.undo(ctx, id, err)
	}
	if err := c.showNerdctl(id, labels); err != nil {
		return c.tasks.undo(ctx, id, fmt.Errorf("cannot make it visible to nerdctl: %w", err))
	}
	if _, err := call(ctx, c.shims, createTimeout, c.shims.api().Start, &tasksapi.StartRequest{ContainerID: id}); err != nil {
		return c.tasks.undo(ctx, id, err)
	}
	return nil
}

// untilClear retries a start while what is in its way is about to go.
func (t *tasks) untilClear(ctx context.Context, id string, start func() error) error {
	for lost, wait := 0, burialPoll; ; {
		err := start()
		switch {
		case errdefs.IsAlreadyExists(err):
			// Its shim died, and containerd has not yet cleaned up.
		case lost == maxLostShims, errors.Is(err, ErrBlocked):
			return err
		case isLostShim(err, id):
			// The shim ended with the group's last container. The next attempt starts one.
			lost++
			wait *= 2
			if lost == maxLostShims {
				if failed := t.clearBundle(ctx, id, err); failed != nil {
					return errors.Join(err, failed)
				}
			}
		case err != nil && strings.Contains(err.Error(), "container with given ID already exists"):
			// runc knows a container of whose task containerd knows nothing: a runc that was
			// creating it has outlived a shim that was killed. It has no more than a text for it.
			lost++
			t.runc.kill("create", id)
		default:
			return err
		}
		if !pause(ctx, wait) {
			return err
		}
	}
}

// clearBundle removes the directory that keeps containerd from making a task, if err says
// so: a containerd 1.6 whose caller is killed while it starts a shim forgets the task but
// not the directory. It removes nothing that is mounted inside.
func (t *tasks) clearBundle(ctx context.Context, id string, err error) error {
	_, dir, _ := strings.Cut(err.Error(), "mkdir ")
	dir, _, found := strings.Cut(dir, ": file exists")
	if !found || !filepath.IsAbs(dir) || !strings.HasSuffix(dir, filepath.Join("/io.containerd.runtime.v2.task", t.namespace, id)) {
		return nil
	}
	t.logger.Warn("removing a directory of containerd in which no task runs", "container", id, "directory", dir)
	if err := tree.Detach(filepath.Join(dir, "rootfs")); err != nil {
		return err
	}
	return tree.Remove(ctx, dir)
}

// clear removes what is left of a container without a task: processes that only its control
// group still shows, and runc's record, with which runc would refuse to create the container.
func (t *tasks) clear(ctx context.Context, id string) error {
	return errors.Join(t.cgroups.endStrays(ctx, id), os.RemoveAll(filepath.Join(t.runc.dir, id)))
}

// unbroken extends ctx by finishTimeout: a creation or deletion that is broken off between
// containerd's part and the shim's leaves something that neither looks after.
func unbroken(ctx context.Context) (context.Context, context.CancelFunc) {
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		pause(whole, finishTimeout)
		cancel()
	})
	return whole, func() { stop(); cancel() }
}

// isLostShim reports whether there was no shim to make the task, or the directory of a
// killed one is still being removed. Only containerd's error text tells.
func isLostShim(err error, id string) bool {
	if err == nil {
		return false
	}
	is := func(text string) bool { return strings.Contains(err.Error(), text) }
	return slices.ContainsFunc([]string{"failed to start shim", "ttrpc: closed", "shim task: shutdown", "/" + id + ": file exists"}, is) ||
		is("shim") && is("dial unix")
}

func (t *tasks) undo(ctx context.Context, id string, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	return errors.Join(why, t.delete(ctx, id))
}

// prepareStart restores mounts that may have gone since the container was created.
func (c *Containers) prepareStart(ctx context.Context, id string, l Labels) error {
	for _, v := range l.Volumes {
		if err := c.EnsureVolume(ctx, l.Project, v); err != nil {
			return err
		}
	}
	return c.placeFiles(id, l)
}

// Stop ends the process of a container, gracefully at first, and deletes its task. It is no
// error if none runs. grace is the time to end gracefully; nil: the container's own.
func (c *Containers) Stop(ctx context.Context, id string, grace *time.Duration) error {
	if err := c.shims.with(ctx, id, func() error { return c.stop(ctx, id, grace) }); err != nil {
		return fmt.Errorf("cannot stop container %s: %w", id, err)
	}
	return nil
}

func (c *Containers) stop(ctx context.Context, id string, grace *time.Duration) error {
	state := c.shims.state(ctx, id)
	if errors.Is(state.err, ErrUnresponsive) {
		return state.err
	}
	if running := state.err == nil && isUp(state.value); !running {
		return c.tasks.delete(ctx, id)
	}

	labels, err := c.announceStop(ctx, id)
	if err != nil {
		return err
	}
	signal, err := compose.ParseSignal(labels.StopSignal)
	if err != nil {
		return err
	}
	if grace != nil {
		labels.StopGrace = max(*grace, 0)
	}
	if state.value.GetStatus() == task.Status_PAUSED { // signals wait until it resumes
		if _, err := call(ctx, c.shims, callTimeout, c.shims.api().Resume, &tasksapi.ResumeTaskRequest{ContainerID: id}); err != nil {
			return err
		}
	}

	c.runHooks(ctx, id, labels)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := c.shims.wait(waiting, id, "")
	told, err := c.tasks.kill(ctx, id, signal, false)
	if err != nil {
		return err
	}
	if !told || !sleep(ctx, ended, labels.StopGrace) {
		if _, err := c.tasks.kill(ctx, id, unix.SIGKILL, true); err != nil {
			return err
		}
		if err := c.cgroups.endStrays(ctx, id); err != nil {
			return err
		}
		if !sleep(ctx, ended, killTimeout) {
			return fmt.Errorf("it did not end within %s of SIGKILL", killTimeout)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.tasks.delete(ctx, id)
}

// runHooks gives each hook the stop timeout. Their failures do not prevent the stop.
func (c *Containers) runHooks(ctx context.Context, id string, l Labels) {
	for n, hook := range l.PreStop {
		limited, cancel := context.WithTimeout(ctx, max(l.StopGrace, time.Second))
		code, err := c.Exec(limited, id, HookExec(hook))
		cancel()
		if err != nil || code != 0 {
			c.o.Logger.Warn("pre_stop hook failed", "container", id, "hook", n, "code", code, "error", err)
		}
	}
}

// kill reports whether a process got the signal; none has if it ended or runc forgot it.
func (t *tasks) kill(ctx context.Context, id string, signal unix.Signal, all bool) (told bool, err error) {
	err = t.shims.kill(ctx, &tasksapi.KillRequest{ContainerID: id, Signal: uint32(signal), All: all})
	switch {
	case err == nil:
		return true, nil
	case errdefs.IsNotFound(err):
		return false, nil
	default:
		return false, fmt.Errorf("cannot send %s: %w", unix.SignalName(signal), err)
	}
}

// sleep reports an end of the process or ctx before d. So does a failed wait: callers recheck.
func sleep(ctx context.Context, ended <-chan outcome[int], d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-ctx.Done():
		return true
	case <-timer.C:
		return false
	}
}

// pause waits for d; false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// delete deletes a task in any state; no task is no error. It also deletes one that its shim
// does not know: if a deletion was broken off after the shim's part, containerd still keeps
// the shim for it.
func (t *tasks) delete(ctx context.Context, id string) error {
	if t.state(ctx, id).value.GetStatus() == task.Status_CREATED {
		// Otherwise its shim waits seconds for more output.
		if _, err := t.kill(ctx, id, unix.SIGKILL, true); err != nil {
			return err
		}
	}
	switch err := t.remove(ctx, id); {
	case err == nil:
		return t.clear(ctx, id)
	case errors.Is(err, ErrUnresponsive):
		return err
	}
	// Its process may still run.
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	_, err := t.kill(ctx, id, unix.SIGKILL, true)
	if errors.Join(err, t.cgroups.endStrays(ctx, id)) == nil {
		sleep(ctx, t.wait(ctx, id, ""), killTimeout) // the next error tells more
	}
	if err := t.remove(ctx, id); err != nil {
		return fmt.Errorf("cannot delete task: %w", err)
	}
	return nil
}

// remove deletes a task that has ended; no task is no error.
func (t *tasks) remove(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := unbroken(ctx)
	defer cancel()
	_, err := call(ctx, t.shims, callTimeout, t.api().Delete, &tasksapi.DeleteTaskRequest{ContainerID: id})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}
