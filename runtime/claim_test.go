package runtime_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/images"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/expect"
)

// late is a containerd whose first list of containers, for who asks with a context
// of it, is old by the time it comes.
type late struct {
	containerd.Client
	once    sync.Once
	asked   chan struct{} // closed when that list was made
	release chan struct{} // closed when it may come
}

type lateKey struct{}

func (l *late) ContainerService() containers.Store {
	return lateStore{l.Client.ContainerService(), l}
}

type lateStore struct {
	containers.Store
	late *late
}

func (s lateStore) List(ctx context.Context, filters ...string) ([]containers.Container, error) {
	all, err := s.Store.List(ctx, filters...)
	if ctx.Value(lateKey{}) == s.late {
		s.late.once.Do(func() {
			close(s.late.asked)
			<-s.late.release
		})
	}
	return all, err
}

// A project whose view of the device has become old, since another one was applied
// meanwhile, does not get the place of that.
func TestProjectsAtOnceHavePlacesOfTheirOwn(t *testing.T) {
	const file = `services: {web: {image: BUSYBOX, command: ["sleep", "1000"], ports: ["80"]}}`
	r := newRig(t, embeddedBackend())
	l := &late{Client: r.client, asked: make(chan struct{}), release: make(chan struct{})}
	r.client = l
	e := r.engine()
	slow, fast := r.load(e, "slow", file), r.load(e, "fast", file)
	applied := make(chan error, 1)
	go func() { applied <- e.Apply(context.WithValue(t.Context(), lateKey{}, l), slow, runtime.ApplyOptions{}) }()
	<-l.asked
	r.apply(e, fast)
	close(l.release)
	expect.Check(t, <-applied)
	for _, port := range r.containers(e, "slow")["web"].Ports {
		if slices.Contains(r.containers(e, "fast")["web"].Ports, port) {
			t.Errorf("both have port %s", port)
		}
	}
}

// queue is a containerd that lets callers look for images, which a project does
// once it has claimed its place, when they may.
type queue struct{ containerd.Client }

type queueKey struct{}

// ticket is what a caller of a queue has in its context.
type ticket struct {
	arrived func()          // it looks for its image
	goes    <-chan struct{} // closed when it may
}

func (q *queue) ImageService() images.Store { return queueStore{q.Client.ImageService()} }

type queueStore struct{ images.Store }

func (s queueStore) Get(ctx context.Context, name string) (images.Image, error) {
	if t, ok := ctx.Value(queueKey{}).(ticket); ok {
		t.arrived()
		<-t.goes
	}
	return s.Store.Get(ctx, name)
}

// Of two projects that are applied at the same time and publish the same port the
// first one gets it. The other one fails, and keeps what it had.
func TestTheFirstOfTwoProjectsGetsThePort(t *testing.T) {
	const before = `services: {web: {image: BUSYBOX, command: ["sleep", "1000"]}}`
	const after = `services: {web: {image: BUSYBOX, command: ["sleep", "1001"], ports: ["18473:80"]}}`
	r := newRig(t, embeddedBackend())
	r.client = &queue{r.client}
	e := r.engine()
	r.apply(e, r.load(e, "first", before))
	r.apply(e, r.load(e, "second", before))
	had := r.containers(e, "second")["web"].ID
	first, second := r.load(e, "first", after), r.load(e, "second", after)

	claimed, claimedToo, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	arrived := sync.OnceFunc(func() { close(claimedToo) })
	applied := make(chan error, 1)
	go func() {
		defer close(ended)
		ctx := context.WithValue(t.Context(), queueKey{}, ticket{sync.OnceFunc(func() { close(claimed) }), claimedToo})
		applied <- e.Apply(ctx, first, runtime.ApplyOptions{})
	}()
	<-claimed
	err := e.Apply(context.WithValue(t.Context(), queueKey{}, ticket{arrived, ended}), second, runtime.ApplyOptions{})
	arrived() // if it has not: it was refused before it claimed anything
	var refused *runtime.Error
	if !errors.As(err, &refused) || refused.Code != runtime.Conflict || !strings.Contains(err.Error(), "service web of project first") {
		t.Errorf("the second project failed with %v, want a conflict", err)
	}
	expect.Error(t, <-applied, nil, "the first project")
	expect.Equal(t, len(r.containers(e, "first")["web"].Ports), 1, "ports of the first project")
	expect.Equal(t, r.containers(e, "second")["web"].ID, had, "container of the second project")
}
