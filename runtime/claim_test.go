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

// gate is a containerd at which those wait who have a ticket for it in their context.
type gate struct{ containerd.Client }

type place string

const (
	atLists  place = "lists"  // of containers, which are old by the time they come
	atImages place = "images" // for which a project looks once it has claimed its place
)

type ticket struct {
	arrived func()          // it waits
	goes    <-chan struct{} // closed when it may go on
}

func (p place) wait(ctx context.Context) {
	if t, ok := ctx.Value(p).(ticket); ok {
		t.arrived()
		<-t.goes
	}
}

func (g gate) ContainerService() containers.Store {
	return gatedContainers{g.Client.ContainerService()}
}
func (g gate) ImageService() images.Store { return gatedImages{g.Client.ImageService()} }

type gatedContainers struct{ containers.Store }

func (s gatedContainers) List(ctx context.Context, filters ...string) ([]containers.Container, error) {
	all, err := s.Store.List(ctx, filters...)
	atLists.wait(ctx)
	return all, err
}

type gatedImages struct{ images.Store }

func (s gatedImages) Get(ctx context.Context, name string) (images.Image, error) {
	atImages.wait(ctx)
	return s.Store.Get(ctx, name)
}

// A project whose view of the device has become old, since another one was applied
// meanwhile, does not get the place of that.
func TestProjectsAtOnceHavePlacesOfTheirOwn(t *testing.T) {
	const file = `services: {web: {image: BUSYBOX, command: ["sleep", "1000"], ports: ["80"]}}`
	r := newRig(t, embeddedBackend())
	r.client = gate{r.client}
	e := r.engine()
	slow, fast := r.load(e, "slow", file), r.load(e, "fast", file)
	asked, release, applied := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	late := context.WithValue(t.Context(), atLists, ticket{sync.OnceFunc(func() { close(asked) }), release})
	go func() { applied <- e.Apply(late, slow, runtime.ApplyOptions{}) }()
	<-asked
	r.apply(e, fast)
	close(release)
	expect.Check(t, <-applied)
	for _, port := range r.containers(e, "slow")["web"].Ports {
		expect.True(t, !slices.Contains(r.containers(e, "fast")["web"].Ports, port), "both have port %s", port)
	}
}

// Of two projects that are applied at the same time and publish the same port the
// first one gets it. The other one fails, and keeps what it had.
func TestTheFirstOfTwoProjectsGetsThePort(t *testing.T) {
	const before = `services: {web: {image: BUSYBOX, command: ["sleep", "1000"]}}`
	const after = `services: {web: {image: BUSYBOX, command: ["sleep", "1001"], ports: ["18473:80"]}}`
	r := newRig(t, embeddedBackend())
	r.client = gate{r.client}
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
		ctx := context.WithValue(t.Context(), atImages, ticket{sync.OnceFunc(func() { close(claimed) }), claimedToo})
		applied <- e.Apply(ctx, first, runtime.ApplyOptions{})
	}()
	<-claimed
	err := e.Apply(context.WithValue(t.Context(), atImages, ticket{arrived, ended}), second, runtime.ApplyOptions{})
	arrived() // if it has not: it was refused before it claimed anything
	var refused *runtime.Error
	if !errors.As(err, &refused) || refused.Code != runtime.Conflict || !strings.Contains(err.Error(), "service web of project first") {
		t.Errorf("the second project failed with %v, want a conflict", err)
	}
	expect.Error(t, <-applied, nil, "the first project")
	expect.Equal(t, len(r.containers(e, "first")["web"].Ports), 1, "ports of the first project")
	expect.Equal(t, r.containers(e, "second")["web"].ID, had, "container of the second project")
}
