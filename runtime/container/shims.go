package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"
)

const (
	callTimeout  = time.Minute            // of a call that has runc do something small, on a slow and busy device
	stateTimeout = 5 * time.Second        // of a question, on a busy device; not longer than the grace time
	recheckShim  = 5 * time.Second        // until a silent shim is asked again
	shimGrace    = 30 * time.Second       // for a silent shim to respond again before it is killed
	minFailures  = 3                      // questions in a row that it left unanswered before it is killed
	slowAnswer   = 50 * time.Millisecond  // a question that takes longer gives up its place
	lateAnswer   = time.Second            // nobody who only looks waits longer
	maxQuestions = 16                     // at the same time, without the slow ones
	askAgain     = 100 * time.Millisecond // a shim that could not tell the state yet

	// pingID is the ID of no command: a shim answers that it does not know it,
	// whatever the container is doing.
	pingID = "margolite-ping"
)

// ErrUnresponsive says that the shim of a container does not respond.
var ErrUnresponsive = errors.New("its shim is not responding")

// errLate: it may still respond in time, or does so while it works for this process.
var errLate = fmt.Errorf("%w yet", ErrUnresponsive)

// shims makes all calls to the shims of containers. A shim may be stopped, or wait
// for a runc that hangs. One that leaves a question unanswered is silent: calls to it
// are refused, and it is asked again until it answers. When its grace time is over,
// those who still wait for it return, and end kills it.
type shims struct {
	*records
	runc    *runc
	cgroups *cgroups
	grace   time.Duration
	timeout time.Duration // of a question
	changed chan struct{} // poked when a shim becomes silent, or is so no more
	ending  chan struct{} // holds one while a shim is killed: those that share it find out at the same time

	// By container.
	mu     sync.Mutex
	calls  map[string]int       // in progress
	asked  map[string]*question // the first that has no answer yet
	silent map[string]silence
}

// silence is that of a shim which left its last questions unanswered.
type silence struct {
	since    time.Time // the first of them was asked
	last     time.Time // it was clear that the last of them has no answer
	failures int
}

type question struct {
	begun time.Time
	done  chan struct{} // closed when there is an answer
	taskState
}

// taskState is what a shim answered. The error is ErrUnresponsive if it did not,
// and NotFound if there is no task.
type taskState = outcome[*task.Process]

func newShims(r *records, runtime *runc, groups *cgroups, grace time.Duration) *shims {
	grace = cmp.Or(grace, shimGrace)
	return &shims{
		records: r, runc: runtime, cgroups: groups, grace: grace, timeout: min(stateTimeout, grace),
		changed: make(chan struct{}, 1), ending: make(chan struct{}, 1),
		calls: make(map[string]int), asked: make(map[string]*question), silent: make(map[string]silence),
	}
}

func (s *shims) api() tasksapi.TasksClient { return s.client.TaskService() }

func (s *shims) recheck() time.Duration { return min(recheckShim, s.grace/minFailures) }

// call makes a call for a container, within limit. It is refused when the shim is
// silent, and given up when its grace time is over; the error is ErrUnresponsive then,
// and else one of errdefs. While it takes long, the shim is asked whether it responds.
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

// begin makes a call that need not end with its context: the embedded containerd may
// block while it sends to a shim that reads nothing. Such a call ends with its shim.
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

// wait returns the exit status of a process; exec is the ID of a command, or "". It
// takes as long as the process runs, whether or not its shim responds.
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

// states asks for the tasks of several containers at the same time, for those who
// only look. However many shims do not respond, it takes little longer than lateAnswer.
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

// look asks for the task of one container, and does not wait for a shim that is late.
func (s *shims) look(ctx context.Context, id string) taskState {
	if now := s.standing(id); now.late && !now.silent {
		return taskState{err: errLate}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lateAnswer, errLate)
	defer cancel()
	return s.state(ctx, id)
}

// state asks for the task of one container, unless its shim is silent.
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

// ask asks for the task of one container, and notes whether its shim responds. That
// goes on when ctx ends, and comes to its own end in time.
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

// query is the answer of a shim within s.timeout. While this process works on the task
// it is enough that the shim answers at all: it may be unable to tell the state.
func (s *shims) query(ctx context.Context, id string) taskState {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
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

// poll asks until the state is known: a shim that is about to end, or was just
// asked to do something else, may not tell it at once.
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
	defer s.mu.Unlock()
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
	if is != was {
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

type standing struct {
	silent  bool
	again   bool // it was asked more than once since
	late    bool // it was asked a while ago, and has not answered yet
	due     bool // it is silent, and to be asked again
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
		again:   quiet.failures > 1,
		late:    q != nil && time.Since(q.begun) >= lateAnswer,
		due:     silent && q == nil && time.Since(quiet.last) >= s.recheck(),
		expired: silent && quiet.failures >= minFailures && time.Since(quiet.since) >= s.grace,
		busy:    s.calls[id] > 0,
	}
}

// isSilent tells whether the shim of a container is silent. There may be nobody else
// who asks it again.
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
