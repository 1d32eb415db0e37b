package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/runtime/network"
)

// Options are the options of an Engine.
type Options struct {
	container.Options                 // less Snapshotter: that of the images. Logger nil: slog.Default
	Images            image.Options   // less Client, State and Logger: those of the containers
	Publish           network.Publish // who may use published ports; "": whom the host's firewall admits
	// OnStep is called around each step that changes something, for fault injection; may be nil.
	OnStep func(step string)
	// Contained gets each *contain.Panic that ended only a part of Run, and its name; may be nil.
	Contained func(what string, err error)
}

// Engine runs Compose projects. It is safe for concurrent use; it serialises changes of one project.
type Engine struct {
	namespace
	*stager

	o          Options
	containers *container.Containers
	networks   *network.Networks

	projects *projects
	places   *places
	packages *packages
	hooked   hookRecords
	health   *health.Monitor
	changes  *agenda                   // for Changed
	busy     atomic.Pointer[time.Time] // since when Run does what it does now; nil: it waits for news
}

// New checks the options and prepares the directories. It starts nothing. Call Close after use.
func New(o Options) (*Engine, error) {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.OnStep == nil {
		o.OnStep = func(string) {}
	}
	if o.Contained == nil {
		o.Contained = func(string, error) {}
	}
	switch {
	case o.Client == nil || o.Namespace == "":
		return nil, errors.New("cannot create runtime: containerd client and namespace are required")
	case !filepath.IsAbs(o.StateDir) || !filepath.IsAbs(o.RunDir):
		return nil, errors.New("cannot create runtime: state and run directory must be absolute paths")
	}
	for _, dir := range []string{o.StateDir, o.RunDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("cannot create runtime: %w", err)
		}
	}

	o.Images.Client, o.Images.State, o.Images.Logger = o.Client, o.StateDir, o.Logger
	images := image.New(o.Images)
	networks, err := network.New(network.Options{RunDir: o.RunDir, StateDir: o.StateDir, Publish: o.Publish, Logger: o.Logger, Contained: o.Contained})
	if err != nil {
		return nil, fmt.Errorf("cannot create runtime: %w", err)
	}
	o.Snapshotter = images.Snapshotter
	containers, err := container.New(o.Options)
	if err != nil {
		return nil, fmt.Errorf("cannot create runtime: %w", err)
	}
	in := namespace(o.Namespace)
	known := newProjects(events{namespace: in, client: o.Client, logger: o.Logger})
	e := &Engine{
		namespace:  in,
		stager:     &stager{namespace: in, o: o, images: images, containers: containers},
		o:          o,
		containers: containers,
		networks:   networks,
		projects:   known,
		places:     &places{containers: containers, networks: networks, claims: make(map[string]placement)},
		packages:   &packages{dir: filepath.Join(o.StateDir, "projects"), locks: newLocks(), projects: known},
		hooked:     hookRecords(filepath.Join(o.RunDir, "started")),
		changes:    newAgenda(),
	}
	e.health = health.New(health.Options{Exec: e.probe, Changed: known.tell})
	return e, nil
}

// Close ends health probes and the subscription to events. The containers keep running.
func (e *Engine) Close() {
	e.health.Close()
	e.projects.close()
}

// Changes receives when containers stop, die or vanish outside of Apply and Remove; see Changed.
func (e *Engine) Changes() <-chan struct{} { return e.changes.poked }

// Changed returns the projects changed since the last call. all: any may have, too many to name.
func (e *Engine) Changed() (projects []string, all bool) {
	changed := e.changes.take()
	return slices.Sorted(maps.Keys(changed)), changed[""]
}

// namespace is that of our containers in containerd.
type namespace string

// within is ctx for calls to containerd: its services in this process need the namespace in it.
func (n namespace) within(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, string(n))
}

// poke wakes the receiver of c, now or when it next receives.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
