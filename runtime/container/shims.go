package container

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"

	"github.com/margolite/margolite/runtime/containerd"
)

const (
	callTimeout  = time.Minute            // of a call that has runc do something small, on a slow and busy device
	stateTimeout = 5 * time.Second        // of a question, on a busy device; at most the grace time
	recheckShim  = 5 * time.Second        // until a silent shim is asked again
	shimGrace    = 30 * time.Second       // for a silent shim to respond again before it is killed
	minFailures  = 3                      // unanswered questions in a row before it is killed
	slowAnswer   = 50 * time.Millisecond  // a slower question gives up its place
	lateAnswer   = time.Second            // the most that a mere look waits
	maxQuestions = 16                     // at the same time, except slow ones
	askAgain     = 100 * time.Millisecond // while a shim cannot tell the state yet

	// pingID is no command: a shim answers that it does not know it, whatever else it does.
	pingID = "margolite-ping"
)

// ErrUnresponsive says that the shim of a container does not respond.
var ErrUnresponsive = errors.New("its shim is not responding")

// errLate: the shim may still respond in time, or does while it works for this process.
var errLate = fmt.Errorf("%w yet", ErrUnresponsive)

// shims makes all calls to the shims of containers. A shim may be stopped, or wait for a
// runc that hangs. A shim that leaves a question unanswered is silent: calls to it are
// refused, and it is asked again until it answers. After its grace time, pending calls
// return and end kills it.
type shims struct {
	*records
	runc    *runc
	cgroups *cgroups
	grace   time.Duration
	changed chan struct{} // poked when a shim becomes silent or responds again
	ending  chan struct{} // holds one while a shim is killed; others waiting to kill may share it, and check again

	mu   sync.Mutex
	tell func(id string) // called when a shim becomes silent or responds again; nil: no watcher
	// By container.
	calls  map[string]int       // in progress
	asked  map[string]*question // the oldest without an answer
	silent map[string]silence
}

// silence describes a shim that left its last questions unanswered.
type silence struct {
	since    time.Time // when the first of them was asked
	last     time.Time // when the last of them timed out
	failures int
}

type question struct {
	begun time.Time
	done  chan struct{} // closed when there is an answer
	taskState
}

// taskState is a shim's answer. Errors: ErrUnresponsive, or NotFound without a task.
type taskState = outcome[*task.Process]

func newShims(r *records, runtime *runc, groups *cgroups, grace time.Duration) *shims {
	grace = cmp.Or(grace, shimGrace)
	return &shims{
		records: r, runc: runtime, cgroups: groups, grace: grace,
		changed: make(chan struct{}, 1), ending: make(chan struct{}, 1),
		calls: make(map[string]int), asked: make(map[string]*question), silent: make(map[string]silence),
	}
}

func (s *shims) api() tasksapi.TasksClient { return s.client.TaskService() }

func (s *shims) recheck() time.Duration { return min(recheckShim, s.grace/minFailures) }

// call makes a call for a container, within limit. It is refused if the shim is silent, and
// abandoned after its grace time; then the error is ErrUnresponsive, otherwise one of
// errdefs. During a long call the shim is asked whether it responds.
func call[Q interface{ GetContainerID() string }, A any](
	ctx context.Context, s *shims, limit time.Duration, method func(context.Context, Q, ...grpc.CallOption) (A, error), request Q,
) (answer A, err error) {
	id := request.GetContainerID()
	if s.isSilent(ctx, id) {
		return answer, ErrUnresponsive
	}
	s.count(id, 1)
	defer s.count(id, -1)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ended := begin(func() (A, error) { return method(ctx, request) })
	again := time.NewTicker(s.recheck())
	defer again.Stop()
	for {
		select {
		case o := <-ended:
			return o.value, errgrpc.ToNative(o.err)
		case <-ctx.Done():
			return answer, ctx.Err()
		case <-again.C:
			if s.standing(id).expired {
				return answer, ErrUnresponsive
			}
			s.ask(ctx, id)
		}
	}
}

type outcome[T any] struct {
	value T
	err   error
}

// begin makes a call that may outlast its context: the embedded containerd may block while
// it sends to a shim that does not read. Such a call ends with its shim.
func begin[T any](f func() (T, error)) <-chan outcome[T] {
	ended := make(chan outcome[T], 1)
	go func() {
		var o outcome[T]
		o.value, o.err = f()
		ended <- o
	}()
	return ended
}

func (s *shims) kill(ctx context.Context, r *tasksapi.KillRequest) error {
	_, err := call(ctx, s, callTimeout, s.api().Kill, r)
	return err
}

// wait returns an exit status, whether or not the shim responds; exec: a command's ID, or "".
func (s *shims) wait(ctx context.Context, id, exec string) <-chan outcome[int] {
	return begin(func() (int, error) {
		got, err := s.api().Wait(ctx, &tasksapi.WaitRequest{ContainerID: id, ExecID: exec})
		return int(got.GetExitStatus()), errgrpc.ToNative(err)
	})
}

func (s *shims) deleteProcess(ctx context.Context, id, exec string) error {
	_, err := call(ctx, s, callTimeout, s.api().DeleteProcess, &tasksapi.DeleteProcessRequest{ContainerID: id, ExecID: exec})
	return err
}

// states asks for several containers' tasks at the same time, for a mere look. However many
// shims do not respond, it takes little longer than lateAnswer.
func (s *shims) states(ctx context.Context, ids []string) []taskState {
	answers := make([]taskState, len(ids))
	places := make(chan struct{}, maxQuestions)
	var asking sync.WaitGroup
	for i, id := range ids {
		places <- struct{}{}
		asking.Go(func() {
			release := sync.OnceFunc(func() { <-places })
			defer release()
			defer time.AfterFunc(slowAnswer, release).Stop()
			answers[i] = s.look(ctx, id)
		})
	}
	asking.Wait()
	return answers
}

// look asks for one container's task, without waiting for a late shim.
func (s *shims) look(ctx context.Context, id string) taskState {
	if now := s.standing(id); now.late && !now.silent {
		return taskState{err: errLate}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lateAnswer, errLate)
	defer cancel()
	return s.state(ctx, id)
}

// state asks for one container's task, unless its shim is silent.
func (s *shims) state(ctx context.Context, id string) taskState {
	if s.isSilent(ctx, id) {
		return taskState{err: ErrUnresponsive}
	}
	return s.check(ctx, id)
}

func (s *shims) check(ctx context.Context, id string) taskState {
	q := s.ask(ctx, id)
	select {
	case <-q.done:
		return q.taskState
	case <-ctx.Done():
		return taskState{err: context.Cause(ctx)}
	}
}

// ask notes whether the shim responds, even after ctx ends, for at most stateTimeout.
func (s *shims) ask(ctx context.Context, id string) *question {
	q := &question{begun: time.Now(), done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked[id] == nil {
		s.asked[id] = q
	}
	go func() {
		q.taskState = s.query(context.WithoutCancel(ctx), id)
		s.note(id, q)
	}()
	return q
}

// query waits for stateTimeout. While this process works on the task, any answer will do.
func (s *shims) query(ctx context.Context, id string) taskState {
	ctx, cancel := context.WithTimeout(ctx, min(stateTimeout, s.grace))
	defer cancel()
	state := begin(func() (*task.Process, error) { return s.poll(ctx, id) })
	var ping <-chan outcome[*task.Process]
	late := time.NewTimer(lateAnswer)
	defer late.Stop()
	for {
		select {
		case o := <-state:
			if ctx.Err() == nil {
				return o
			}
		case o := <-ping:
			if ctx.Err() == nil && !errdefs.IsDeadlineExceeded(o.err) {
				return taskState{err: errLate}
			}
		case <-late.C:
			if s.standing(id).busy {
				ping = begin(func() (*task.Process, error) { return s.get(ctx, id, pingID) })
			}
		case <-ctx.Done():
			return taskState{err: ErrUnresponsive}
		}
	}
}

// poll asks until the state is known: a busy or ending shim may not tell it at once.
func (s *shims) poll(ctx context.Context, id string) (*task.Process, error) {
	for {
		got, err := s.get(ctx, id, "")
		switch {
		case errdefs.IsNotFound(err), err == nil && got.GetStatus() != task.Status_UNKNOWN:
			return got, err
		case err != nil && errdefs.IsUnavailable(err): // containerd itself is away
			return got, err
		}
		if !pause(ctx, askAgain) {
			return got, ctx.Err()
		}
	}
}

func (s *shims) get(ctx context.Context, id, exec string) (*task.Process, error) {
	got, err := s.api().Get(ctx, &tasksapi.GetRequest{ContainerID: id, ExecID: exec})
	return got.GetProcess(), errgrpc.ToNative(err)
}

func (s *shims) note(id string, q *question) {
	s.mu.Lock()
	close(q.done)
	if s.asked[id] == q {
		delete(s.asked, id)
	}
	quiet, was := s.silent[id]
	is := errors.Is(q.err, ErrUnresponsive) && !errors.Is(q.err, errLate)
	if is {
		if !was {
			quiet.since = q.begun
		}
		quiet.last = time.Now()
		quiet.failures++
		s.silent[id] = quiet
	} else {
		delete(s.silent, id)
	}
	tell := s.tell
	s.mu.Unlock()
	switch {
	case is && quiet.failures == 2: // being busy once is not worth a message
		s.logger.Warn("shim does not respond", "container", id, "kill_after", s.grace)
	case !is && quiet.failures > 1:
		s.logger.Info("shim responds again, or is gone", "container", id)
	}
	if is == was {
		return
	}
	if tell != nil {
		tell(id)
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

type standing struct {
	silent  bool
	late    bool // it has left a question unanswered for a while
	due     bool // it is silent and must be asked again
	expired bool // it is silent, and its grace time is over
	busy    bool // this process works on the task
}

func (s *shims) standing(id string) standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	quiet, silent := s.silent[id]
	q := s.asked[id]
	return standing{
		silent:  silent,
		late:    q != nil && time.Since(q.begun) >= lateAnswer,
		due:     silent && q == nil && time.Since(quiet.last) >= s.recheck(),
		expired: silent && quiet.failures >= minFailures && time.Since(quiet.since) >= s.grace,
		busy:    s.calls[id] > 0,
	}
}

// isSilent also asks the shim again when due: perhaps no one else does.
func (s *shims) isSilent(ctx context.Context, id string) bool {
	now := s.standing(id)
	if now.due {
		s.ask(ctx, id)
	}
	return now.silent
}

func (s *shims) count(id string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[id] += n; s.calls[id] == 0 {
		delete(s.calls, id)
	}
}

func (s *shims) listSilent() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.silent))
}

func (s *shims) allAnswered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.silent)+len(s.asked) == 0
}

// shimProcess is the name of a shim's process, cut off by the kernel.
const shimProcess = "containerd-shim"

// WatchShims asks silent shims again until ctx ends, and kills them after the grace time:
// containerd then reports that their containers have ended. changed is called when a shim
// becomes silent or responds again; it must not block.
func (s *shims) WatchShims(ctx context.Context, changed func(id string)) error {
	s.mu.Lock()
	s.tell = changed
	s.mu.Unlock()
	for {
		silent := s.listSilent()
		for _, id := range silent {
			if !s.standing(id).expired {
				s.isSilent(ctx, id) // asks it when it is time
			} else if err := s.end(ctx, id); err != nil && ctx.Err() == nil {
				s.logger.Warn("cannot kill shim that does not respond", "container", id, "error", err)
			}
		}
		var again <-chan time.Time // nil: all shims respond
		if len(silent) > 0 {
			again = time.After(s.recheck())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		case <-again:
		}
	}
}

// with retries do after the container's shim responds, or was killed after its grace time.
func (s *shims) with(ctx context.Context, id string, do func() error) error {
	err := do()
	for errors.Is(err, ErrUnresponsive) && ctx.Err() == nil {
		for !s.standing(id).expired && errors.Is(s.check(ctx, id).err, ErrUnresponsive) {
			if !pause(ctx, s.recheck()) {
				return ctx.Err()
			}
		}
		if s.standing(id).expired {
			if err := s.end(ctx, id); err != nil {
				return err
			}
		}
		err = do()
	}
	return err
}

// awaitGroup waits until the shim that a new task of a project would join responds, or kills
// it. It is harder to clean up after a creation that such a shim holds up: containerd 1.6
// leaves the task's directory, and refuses to create it again.
func (s *shims) awaitGroup(ctx context.Context, project string) error {
	if s.allAnswered() {
		return nil
	}
	found, err := s.client.ContainerService().List(ctx, ofProject(project))
	if err != nil {
		return err
	}
	for _, r := range found {
		if now := s.standing(r.ID); !now.silent && !now.late {
			continue
		}
		err := s.with(ctx, r.ID, func() error { return s.check(ctx, r.ID).err })
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// end kills a shim with all it runs, unless it responds, and waits for containerd to notice.
func (s *shims) end(ctx context.Context, id string) error {
	select {
	case s.ending <- struct{}{}:
		defer func() { <-s.ending }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.check(ctx, id); !s.isSilent(ctx, id) {
		return nil
	}
	found, err := s.find(ctx, id)
	if err != nil {
		return fmt.Errorf("cannot find the shim of container %s: %w", id, err)
	}
	for _, pid := range found {
		s.logger.Warn("killing shim that does not respond", "container", id, "shim", pid)
		killTree(pid, isShim)
	}
	ctx, done := context.WithTimeout(ctx, killTimeout)
	defer done()
	for {
		switch answer := s.check(ctx, id); {
		case ctx.Err() != nil, errors.Is(answer.err, ErrUnresponsive):
		case errdefs.IsNotFound(answer.err):
			return s.cgroups.endStrays(ctx, id)
		default:
			return answer.err
		}
		if !pause(ctx, strayPoll) {
			return fmt.Errorf("cannot kill the shim of container %s within %s (%d processes found)", id, killTimeout, len(found))
		}
	}
}

// find finds the shim of a container without asking it: the parent of the container's
// process, or one that was started for it. Without either, the task is still to be created
// in the shim of its project: that of another container that does not respond, or one that
// containerd has given up.
func (s *shims) find(ctx context.Context, id string) (found []int, err error) {
	// All questions go through containerd, which may be what does not respond.
	limited, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	record, err := s.client.ContainerService().Get(limited, id)
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("cannot determine whether it or containerd does not respond: %w", err)
	}
	running, err := s.byContainer()
	if err != nil {
		return nil, err
	}
	own := func(id string) int {
		if pid := parentOf(s.runc.recordedPid(id)); isShim(pid) {
			return pid
		}
		return running[id]
	}
	if pid := own(id); pid > 0 {
		return []int{pid}, nil
	}
	siblings, err := s.client.ContainerService().List(ctx, ofProject(record.Labels[OwnerKey]))
	if err != nil {
		return nil, err
	}
	for _, sibling := range siblings {
		pid := own(sibling.ID)
		if pid == 0 || slices.Contains(found, pid) {
			continue
		}
		err := s.check(ctx, sibling.ID).err
		if errors.Is(err, ErrUnresponsive) || errdefs.IsNotFound(err) {
			found = append(found, pid)
		}
	}
	return found, nil
}

// byContainer returns the shims that this containerd has started, by the container each was
// started for. Another containerd's shims may serve containers of the same names.
func (s *shims) byContainer() (map[string]int, error) {
	socket, err := os.Stat(containerd.Address(s.client))
	if err != nil {
		return nil, err
	}
	found := make(map[string]int)
	for _, pid := range processesWith(func(line []byte) bool { return argument(line, "-namespace") == s.namespace }) {
		line := commandLine(pid)
		of, err := os.Stat(argument(line, "-address"))
		if err == nil && os.SameFile(of, socket) && isShim(pid) {
			found[argument(line, "-id")] = pid
		}
	}
	return found, nil
}

func isShim(pid int) bool {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && pid > 1 && string(bytes.TrimSpace(name)) == shimProcess && isOutside(pid)
}
