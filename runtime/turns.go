package runtime

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/margolite/margolite/runtime/limit"
)

// endSoon is for how long a change waits for what the supervisor has begun.
const endSoon = 5 * time.Second

// turns say who works on a project: whoever asked for a change, or the supervisor.
type turns struct {
	changing locks // who may ask for a change of a project, or whether it needs one

	mu     sync.Mutex
	held   map[string]holding  // by project that Apply or Remove works on, or waits for
	left   map[string]bool     // projects that LeaveAlone names
	tended map[string]*tending // by project that the supervisor works on
}

type holding struct {
	refused bool // the supervisor wanted to look meanwhile
}

type tending struct {
	end  context.CancelFunc
	done chan struct{} // closed when it has ended
}

// take gives a project to a change, once the supervisor is done with it. What the
// supervisor does there is ended soon: it could wait for something that never comes.
// letGo, which tells whether the supervisor wanted to look meanwhile, has to be called
// unless it is nil, also after an error.
func (t *turns) take(ctx context.Context, project string) (letGo func() (refused bool), err error) {
	done, err := t.changing.lock(ctx, project)
	if err != nil {
		return nil, err
	}
	letGo = func() bool {
		t.mu.Lock()
		refused := t.held[project].refused
		delete(t.held, project)
		t.mu.Unlock()
		done()
		return refused
	}
	t.mu.Lock()
	t.held[project] = holding{refused: t.left[project]}
	delete(t.left, project)
	now := t.tended[project]
	t.mu.Unlock()
	if now == nil {
		return letGo, nil
	}
	defer time.AfterFunc(endSoon, now.end).Stop()
	select {
	case <-now.done:
		return letGo, nil
	case <-ctx.Done():
		return letGo, fmt.Errorf("cannot wait for the supervisor of project %s: %w", project, ctx.Err())
	}
}

// tend gives a project to the supervisor; not ok while somebody wants to change it, or
// has still to decide about it. The context it returns ends when somebody cannot wait
// any longer for a change.
func (t *turns) tend(ctx context.Context, project string) (_ context.Context, done func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, held := t.held[project]; held {
		t.held[project] = holding{refused: true}
		return ctx, nil, false
	}
	if t.left[project] || t.tended[project] != nil {
		return ctx, nil, false
	}
	ctx, end := context.WithCancel(ctx)
	now := &tending{end, make(chan struct{})}
	t.tended[project] = now
	return ctx, func() {
		t.mu.Lock()
		delete(t.tended, project)
		t.mu.Unlock()
		end()
		close(now.done)
	}, true
}

// leave keeps the supervisor from projects until a change takes them, or decided.
func (t *turns) leave(projects []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range projects {
		t.left[name] = true
	}
}

// decided ends what leave began, and tells whether it did.
func (t *turns) decided(project string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.left[project]
	delete(t.left, project)
	return was
}

func newLocks() locks {
	same := func(held, wanted limit.Key) bool { return held.Kind == wanted.Kind }
	return locks{limit.New(0, limit.Bound{Most: 1, Counts: same})}
}

type locks struct{ *limit.Limiter }

// lock waits for the project, or for the end of ctx. After that it takes it only if it
// is free at once.
func (l locks) lock(ctx context.Context, project string) (unlock func(), err error) {
	slot, err := l.Acquire(ctx, limit.Key{Kind: project}, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot wait for another change of project %s: %w", project, ctx.Err())
	}
	return slot.Release, nil
}
