package container

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"

	"github.com/margolite/margolite/runtime/containerd"
)

const (
	stateTimeout  = 5 * time.Second        // for a shim to answer a question, on a busy device; not longer than its grace time
	recheckShim   = 5 * time.Second        // until a shim that did not respond is asked again
	shimGrace     = 30 * time.Second       // for a shim to respond again before it is killed
	minFailures   = 3                      // questions in a row that a shim fails to answer before it is killed
	slowAnswer    = 50 * time.Millisecond  // a question that takes longer gives up its place
	lateAnswer    = time.Second            // nobody who only looks waits longer
	maxQuestions  = 16                     // at the same time, without the slow ones
	askAgain      = 100 * time.Millisecond // a shim that could not tell the state yet
	maxRuncRecord = 1 << 20                // bytes

	// pingID is the ID of no command: a shim answers that it does not know it,
	// whatever the container is doing.
	pingID = "margolite-ping"
)

// ErrUnresponsive says that the shim of a container does not respond.
var ErrUnresponsive = errors.New("its shim is not responding")

// errLate: it has not answered yet, and may still do so in time.
var errLate = errors.New("its shim is slow to respond")

// shims asks shims for the states of their tasks. A shim may be stopped, or wait
// for a runc that hangs: each question has a deadline of its own, and a shim that
// missed it is not asked again by others, but by watch, from time to time.
type shims struct {
	tasks   func() tasksapi.TasksClient
	grace   time.Duration
	timeout time.Duration // of a question

	found chan struct{} // poked when a shim failed to respond

	mu     sync.Mutex
	silent map[string]silence  // by container
	late   map[string]bool     // those that were asked and have not answered yet
	busy   map[string]activity // by container

	// Holds one while a shim is killed: several containers of a project may find out
	// at the same time that the shim they share does not respond.
	ending chan struct{}
}

// activity is what this process is doing with a task, which may keep the shim
// from telling its state.
type activity struct {
	calls int // in progress
	moves int // of them those that begin or end the task
}

// silence is a shim that does not respond.
type silence struct {
	since    time.Time
	asked    time.Time // the last time
	failures int       // questions in a row that it did not answer
}

func newShims(client containerd.Client, grace time.Duration) *shims {
	grace = cmp.Or(grace, shimGrace)
	return &shims{
		tasks: client.TaskService, grace: grace, timeout: min(stateTimeout, grace), found: make(chan struct{}, 1), ending: make(chan struct{}, 1),
		silent: make(map[string]silence), late: make(map[string]bool), busy: make(map[string]activity),
	}
}

// recheck is how often a shim that does not respond is asked.
func (s *shims) recheck() time.Duration { return min(recheckShim, s.grace/minFailures) }

// taskState is what a shim answered. The error is ErrUnresponsive if it did not,
// and NotFound if there is no task.
type taskState struct {
	process *task.Process
	err     error
}

// states asks for the tasks of several containers at the same time, for those who
// only look. However many shims do not respond, it takes little longer than
// lateAnswer: the error of those is errLate until it is known.
func (s *shims) states(ctx context.Context, ids []string) []taskState {
	return s.each(ids, func(id string) taskState { return s.glance(ctx, id) })
}

// glance is state for somebody who does not wait for a shim that is late.
func (s *shims) glance(ctx context.Context, id string) taskState {
	s.mu.Lock()
	late := s.late[id]
	s.mu.Unlock()
	if late {
		return taskState{err: errLate}
	}
	answered := make(chan taskState, 1)
	go func() { // ends when the time for an answer is over
		answer := s.state(context.WithoutCancel(ctx), id)
		s.mu.Lock()
		defer s.mu.Unlock()
		answered <- answer
		delete(s.late, id)
	}()
	select {
	case answer := <-answered:
		return answer
	case <-ctx.Done():
		return taskState{err: ctx.Err()}
	case <-time.After(lateAnswer):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case answer := <-answered:
		return answer
	default:
	}
	s.late[id] = true
	return taskState{err: errLate}
}

func (s *shims) each(ids []string, ask func(id string) taskState) []taskState {
	answers := make([]taskState, len(ids))
	places := make(chan struct{}, maxQuestions)
	var asking sync.WaitGroup
	for i, id := range ids {
		places <- struct{}{}
		asking.Go(func() {
			release := sync.OnceFunc(func() { <-places })
			defer release()
			defer time.AfterFunc(slowAnswer, release).Stop()
			answers[i] = ask(id)
		})
	}
	asking.Wait()
	return answers
}

// listSilent are the containers whose shims do not respond.
func (s *shims) listSilent() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.silent))
}

// listSuspects are those of listSilent, and those whose shims are late.
func (s *shims) listSuspects() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	suspects := slices.AppendSeq(slices.Collect(maps.Keys(s.silent)), maps.Keys(s.late))
	slices.Sort(suspects)
	return slices.Compact(suspects)
}

// state asks for the task of one container, unless its shim failed to respond
// just before.
func (s *shims) state(ctx context.Context, id string) taskState {
	if s.isSilent(id) {
		return taskState{err: ErrUnresponsive}
	}
	return s.check(ctx, id)
}

// check asks for the task of one container, and notes whether its shim responds.
// While this process works on the task it is enough that the shim answers at all: a
// task that is being created, started or deleted does not run.
func (s *shims) check(ctx context.Context, id string) taskState {
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	answered := make(chan taskState, 1)
	go func() { answered <- s.ask(ctx, id) }() // ends in time by itself
	late := time.NewTicker(lateAnswer)
	defer late.Stop()
	for {
		select {
		case answer := <-answered:
			if ctx.Err() == nil {
				s.note(id, answer.err)
			}
			return answer
		case <-late.C:
		}
		if now := s.activity(id); now.calls > 0 && s.ping(limited, id) == nil {
			s.note(id, nil)
			if now.moves > 0 {
				return taskState{err: errdefs.ErrNotFound}
			}
			return taskState{err: ErrUnresponsive}
		}
	}
}

// note remembers whether the shim of a container responded.
func (s *shims) note(id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !errors.Is(err, ErrUnresponsive) {
		delete(s.silent, id)
		return
	}
	now := time.Now()
	quiet, known := s.silent[id]
	if !known {
		quiet.since = now
	}
	quiet.asked = now
	quiet.failures++
	s.silent[id] = quiet
	if known {
		return
	}
	select {
	case s.found <- struct{}{}:
	default:
	}
}

func (s *shims) isSilent(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	quiet, silent := s.silent[id]
	return silent && time.Since(quiet.asked) < 2*s.recheck()+s.timeout
}

// expired tells whether the grace time of a shim that does not respond is over.
func (s *shims) expired(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	quiet, silent := s.silent[id]
	return silent && quiet.failures >= minFailures && time.Since(quiet.since) >= s.grace
}

// begin notes that a call is in progress, until the function is called that it
// returns.
func (s *shims) begin(id string, moves bool) (end func()) {
	s.add(id, 1, moves)
	return func() { s.add(id, -1, moves) }
}

func (s *shims) add(id string, n int, moves bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.busy[id]
	a.calls += n
	if moves {
		a.moves += n
	}
	s.busy[id] = a
	if a.calls == 0 {
		delete(s.busy, id)
	}
}

func (s *shims) activity(id string) activity {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy[id]
}

// forget drops what is known of the shim of a container.
func (s *shims) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.silent, id)
}

// ping asks a shim for anything at all. The error is ErrUnresponsive if it did
// not answer.
func (s *shims) ping(ctx context.Context, id string) error {
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	_, err := await(limited, func(ctx context.Context) (*task.Process, error) { return getProcess(ctx, s.tasks(), id, pingID) })
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case isDeadline(err):
		return ErrUnresponsive
	}
	return nil // it answered, whatever that is
}

func isDeadline(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errdefs.IsDeadlineExceeded(err)
}

// await calls f, and does not rely on it to end with its context: containerd's
// connection to a shim that reads nothing may block while it sends. Such a call
// ends with its shim.
func await[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		var a answer
		a.value, a.err = f(ctx)
		answered <- a
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// ask asks for the task of one container.
func (s *shims) ask(ctx context.Context, id string) taskState {
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	process, err := await(limited, func(ctx context.Context) (*task.Process, error) { return s.poll(ctx, id) })
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case isDeadline(err):
		err = ErrUnresponsive
	}
	return taskState{process, err}
}

// poll asks until the state is known: a shim that is about to end, or was just
// asked to do something else, may not tell it at once.
func (s *shims) poll(ctx context.Context, id string) (*task.Process, error) {
	for {
		got, err := getProcess(ctx, s.tasks(), id, "")
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

// recordedPid is the first process of a container by runc's own record; 0 if there
// is none. It needs no shim.
func (c *Containers) recordedPid(id string) int {
	f, err := os.Open(filepath.Join(c.runcRoot(), c.o.Namespace, id, "state.json"))
	if err != nil {
		return 0
	}
	defer f.Close()
	var record struct {
		Pid     int    `json:"init_process_pid"`
		Started uint64 `json:"init_process_start"` // in ticks since boot
	}
	err = json.NewDecoder(io.LimitReader(f, maxRuncRecord)).Decode(&record)
	if err != nil || record.Pid <= 0 || startTicks(record.Pid) != record.Started {
		return 0
	}
	return record.Pid
}

// startTicks is when a process started, in ticks since boot; 0: it has ended.
func startTicks(pid int) uint64 {
	ticks, _ := strconv.ParseUint(statField(statFields(pid), 22), 10, 64)
	return ticks
}
