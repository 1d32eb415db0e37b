package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"google.golang.org/grpc"

	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/expect"
)

// questioned is asked for the states of tasks. Those named in hung never answer;
// where deaf is set, not even at the end of the context, as when the connection
// to a shim is full.
type questioned struct {
	tasksapi.TasksClient
	hung map[string]bool
	deaf chan struct{}

	mu    sync.Mutex
	asked map[string]int
}

func (q *questioned) Get(ctx context.Context, r *tasksapi.GetRequest, _ ...grpc.CallOption) (*tasksapi.GetResponse, error) {
	id := r.ContainerID
	q.mu.Lock()
	q.asked[id]++
	hung := q.hung[id]
	q.mu.Unlock()
	if !hung {
		return &tasksapi.GetResponse{Process: &task.Process{ID: id, Pid: 1, Status: task.Status_RUNNING}}, nil
	}
	if q.deaf != nil {
		<-q.deaf
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// client is a containerd that has tasks alone.
type client struct {
	containerd.Client
	tasks tasksapi.TasksClient
}

func (c client) TaskService() tasksapi.TasksClient { return c.tasks }

func newQuestioned(hung ...string) *questioned {
	q := &questioned{hung: make(map[string]bool), asked: make(map[string]int)}
	for _, id := range hung {
		q.hung[id] = true
	}
	return q
}

func (q *questioned) shims() *shims {
	return newShims(&records{client: client{tasks: q}, logger: slog.New(slog.DiscardHandler)}, nil, nil, 0)
}

// However many shims do not respond, and in whichever way, whoever looks at all waits
// as long as for one that is late. Looking again takes no time, and one question finds
// out that a shim does not respond.
func TestSilentShimsAreAskedAtTheSameTime(t *testing.T) {
	for name, deaf := range map[string]bool{"the call ends with its context": false, "the call does not": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ids, hung []string
				for n := range 100 {
					ids = append(ids, fmt.Sprintf("well-%d", n), fmt.Sprintf("hung-%d", n))
					hung = append(hung, fmt.Sprintf("hung-%d", n))
				}
				q := newQuestioned(hung...)
				if deaf {
					q.deaf = make(chan struct{})
					defer close(q.deaf)
				}
				s := q.shims()
				begun := time.Now()
				for _, want := range []struct {
					err  error
					most time.Duration
				}{{errLate, 2 * lateAnswer}, {errLate, 0}, {ErrUnresponsive, 0}} {
					for n, answer := range s.states(t.Context(), ids) {
						if is := errors.Is(answer.err, want.err); is != q.hung[ids[n]] || !is && answer.err != nil {
							t.Errorf("%s: %v, want %v", ids[n], answer.err, want.err)
						}
					}
					if took := time.Since(begun); took > want.most {
						t.Errorf("it took %s until %v", took, want.err)
					}
					if want.most == 0 {
						time.Sleep(stateTimeout)
					}
					begun = time.Now()
				}
				expect.Equal(t, q.asked[hung[0]], 1, "calls to a silent shim")
			})
		})
	}
}

// A shim that responds again is known to after one more question.
func TestASilentShimIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuestioned("a")
		s := q.shims()
		expect.Error(t, s.state(t.Context(), "a").err, ErrUnresponsive, "state")
		q.mu.Lock()
		q.hung["a"] = false
		q.mu.Unlock()
		time.Sleep(2*recheckShim + stateTimeout)
		if answer := s.look(t.Context(), "a"); !errors.Is(answer.err, ErrUnresponsive) { // nobody waits for the question
			t.Error(answer.err)
		}
		synctest.Wait()
		expect.OK(t, s.look(t.Context(), "a").err)
		expect.Equal(t, s.listSilent(), nil, "silent shims")
	})
}

// A caller that gives up says nothing about the shim.
func TestACallerThatLeavesDoesNotMakeAShimSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newQuestioned("a").shims()
		ctx, cancel := context.WithTimeout(t.Context(), stateTimeout/2)
		defer cancel()
		expect.Error(t, s.state(ctx, "a").err, context.DeadlineExceeded, "state")
		expect.Equal(t, s.listSilent(), nil, "silent shims")
		time.Sleep(stateTimeout) // the question goes on to its own end
	})
}

// hungStore is that of a containerd that does not respond.
type hungStore struct{ containers.Store }

func (hungStore) Get(ctx context.Context, _ string) (containers.Container, error) {
	<-ctx.Done()
	return containers.Container{}, ctx.Err()
}

type hungClient struct{ client }

func (hungClient) ContainerService() containers.Store { return hungStore{} }

// A containerd that does not respond is no reason to kill shims.
func TestNoShimIsKilledForContainerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuestioned("a")
		s := q.shims()
		s.client = hungClient{client{tasks: q}}
		err := s.end(t.Context(), "a")
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "cannot determine") {
			t.Errorf("the error is %v", err)
		}
	})
}
