package runtime_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/test/containerdtest"
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

func (l *late) ContainerService() containerd.ContainerStore {
	return lateStore{l.Client.ContainerService(), l}
}

type lateStore struct {
	containerd.ContainerStore
	late *late
}

func (s lateStore) List(ctx context.Context, filters ...string) ([]containerd.Container, error) {
	all, err := s.ContainerStore.List(ctx, filters...)
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
	r := newRig(t, containerdtest.Backends()[0])
	l := &late{Client: r.client, asked: make(chan struct{}), release: make(chan struct{})}
	r.client = l
	e := r.engine()
	slow, fast := r.load(e, "slow", file), r.load(e, "fast", file)
	applied := make(chan error, 1)
	go func() { applied <- e.Apply(context.WithValue(t.Context(), lateKey{}, l), slow, runtime.ApplyOptions{}) }()
	<-l.asked
	r.apply(e, fast)
	close(l.release)
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	for _, port := range r.containers(e, "slow")["web"].Ports {
		if slices.Contains(r.containers(e, "fast")["web"].Ports, port) {
			t.Errorf("both have port %s", port)
		}
	}
}
