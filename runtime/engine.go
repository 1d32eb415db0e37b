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
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/runtime/limit"
	"github.com/margolite/margolite/runtime/log"
	"github.com/margolite/margolite/runtime/network"
)

// Options is what an Engine needs.
type Options struct {
	Client     containerd.Client
	Namespace  string
	StateDir   string // survives a reboot: volumes/<project>/<volume>, projects/<project>/<digest>
	RunDir     string // does not: netns/, hosts/, logs/, mounts/
	LogKeeper  string // program that calls log.Serve, to keep what containers print; "": the shim is ours, and does
	Init       string // program margolite-init for services with init; "": there is none
	Registries map[string]image.Registry
	Publish    network.Publish // who may use published ports; "": whom the host's firewall admits
	Preload    string          // directory of image archives that need no registry; "": none
	Keys       []string        // files of OpenPGP keys: a package that a URL names has to be signed by one of them
	Pulls      int             // downloads at a time from one registry; from all together there is one more; 0: 3
	// MinPullRate is how many bytes a minute a download has to bring to keep its slot while others wait; 0: 16 KiB,
	// negative: any.
	MinPullRate int64
	Reserve     int64        // bytes that images leave free for others; 0: 32 MiB, less on a small file system
	LogDir      string       // of what containers print; "" is RunDir/logs
	LogKeep     log.Keep     // how much of it at most, also where a service asks for more
	Logger      *slog.Logger // nil: slog.Default
	// Environment is what all containers get, as NAME=value, unless their image or
	// service says otherwise. One that is there already keeps what it has.
	Environment []string
	// Certificate is a file with the certificate by which containers know the
	// collector, or it them (OBS-08): they get a copy when they are made. "": none.
	Certificate string
	// ShimGrace is for how long a shim need not respond before it is killed, with
	// the containers that it runs; 0: 30 s.
	ShimGrace time.Duration
	// OnStep is called before and after each step that changes something, for
	// fault injection and tests. nil: nothing.
	OnStep func(step string)
	// Contained is told of each panic that ended one piece of work of Run alone,
	// with what that was. The error is a *contain.Panic. nil: nobody is.
	Contained func(what string, err error)
}

// Engine runs Compose projects. Its methods may be called from several
// goroutines; those that change the same project wait for each other.
type Engine struct {
	o          Options
	images     *image.Images
	containers *container.Containers
	networks   *network.Networks

	changing locks   // who may ask for a change of a project, or whether it needs one
	projects locks   // who may change the containers of a project: the former, or the supervisor
	packages locks   // who may change its extracted packages
	changes  *agenda // of whoever listens to Changes
	health   *health.Monitor

	back    chan struct{} // closed once everything that was found first was tended
	once    sync.Once     // closes it
	looking atomic.Int64  // when Run began what it does now, since begun; 0: it waits for news
	begun   time.Time

	ports     sync.Mutex // one change of what projects share on the network at a time
	mu        sync.Mutex
	claims    map[string]placement           // of the projects that Apply or Remove works on
	ended     uint64                         // claims that are no more
	history   map[string]map[string]*history // by project and container
	held      map[string]holding             // by project that Apply or Remove works on, or waits for
	left      map[string]bool                // projects that LeaveAlone names
	tended    map[string]func()              // by project that the supervisor works on; lets go of it
	changed   map[string]change              // by project
	revision  int                            // counts all changes
	waits     map[string][]Wait              // by project, by the last plan
	starts    int                            // counts the calls of tellWaiting
	watches   map[*watch]bool                // that are to hear of changes of health
	loads     int
	lastLoads map[string]map[string]int // project, directory of an extracted package -> when it was last loaded
}

// New checks the options and prepares the directories. It starts nothing. Close
// has to be called.
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

	images, err := image.New(image.Options{
		Client: o.Client, Registries: o.Registries, Preload: o.Preload, Keys: o.Keys, AtOnce: o.Pulls, MinRate: o.MinPullRate, Logger: o.Logger,
		State: o.StateDir, Reserve: o.Reserve,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot create runtime: %w", err)
	}
	networks, err := network.New(network.Options{RunDir: o.RunDir, StateDir: o.StateDir, Publish: o.Publish, Logger: o.Logger, Contained: o.Contained})
	if err != nil {
		return nil, fmt.Errorf("cannot create runtime: %w", err)
	}
	containers, err := container.New(container.Options{
		Client:      o.Client,
		Namespace:   o.Namespace,
		Snapshotter: images.Snapshotter,
		StateDir:    o.StateDir,
		RunDir:      o.RunDir,
		LogKeeper:   o.LogKeeper,
		Init:        o.Init,
		LogDir:      o.LogDir,
		LogKeep:     o.LogKeep,
		Environment: o.Environment,
		Certificate: o.Certificate,
		ShimGrace:   o.ShimGrace,
		Logger:      o.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot create runtime: %w", err)
	}
	e := &Engine{
		o:          o,
		images:     images,
		containers: containers,
		networks:   networks,
		changing:   newLocks(),
		projects:   newLocks(),
		packages:   newLocks(),
		changes:    newAgenda(),
		back:       make(chan struct{}),
		begun:      time.Now(),
		claims:     make(map[string]placement),
		history:    make(map[string]map[string]*history),
		held:       make(map[string]holding),
		left:       make(map[string]bool),
		tended:     make(map[string]func()),
		changed:    make(map[string]change),
		lastLoads:  make(map[string]map[string]int),
		waits:      make(map[string][]Wait),
		watches:    make(map[*watch]bool),
	}
	e.health = health.New(health.Options{Exec: e.probe, Changed: func(project string) { e.tellWatches(project) }})
	return e, nil
}

// Close ends the probes of containers. The containers go on.
func (e *Engine) Close() { e.health.Close() }

// Changes is poked when something managed stopped, died or vanished outside of
// Apply and Remove. Changed tells what.
func (e *Engine) Changes() <-chan struct{} { return e.changes.poked }

// Changed returns the projects that have changed since the last call. all says
// that there were too many to name: each may have.
func (e *Engine) Changed() (projects []string, all bool) {
	taken := e.changes.take()
	return slices.Sorted(maps.Keys(taken.projects)), taken.all
}

// within is ctx for calls to containerd: its services in this process take the
// namespace from nowhere else.
func (e *Engine) within(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, e.o.Namespace)
}

// poke wakes whoever waits for c, now or the next time.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// newLocks are one lock per project.
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
