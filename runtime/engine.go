package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/containerd"
	"github.com/margolite/margolite/runtime/health"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/runtime/log"
	"github.com/margolite/margolite/runtime/network"
)

// Options is what an Engine needs.
type Options struct {
	Client     containerd.Client
	Namespace  string
	StateDir   string // survives a reboot: volumes/<project>/<volume>, projects/<project>/<digest>
	RunDir     string // does not: netns/, hosts/, logs/, mounts/
	OtherShim  bool   // the shim is not ours, and keeps what containers print as plain text
	Init       string // program margolite-init for services with init; "": there is none
	Registries map[string]image.Registry
	Publish    network.Publish // who may use published ports; "": whom the host's firewall admits
	Preload    string          // directory of image archives that need no registry; "": none
	Keys       []string        // files of OpenPGP keys: a package that a URL names has to be signed by one of them
	Pulls      int             // downloads of image layers at a time; 0: 3
	Reserve    int64           // bytes that images leave free for others; 0: 32 MiB, less on a small file system
	LogDir     string          // of what containers print; "" is RunDir/logs
	LogKeep    log.Keep        // how much of it, where a service does not say
	Logger     *slog.Logger    // nil: slog.Default
	// Environment is what all containers get, as NAME=value, unless their image or
	// service says otherwise. One that is there already keeps what it has.
	Environment []string
	// Certificate is a file with the certificate by which containers know the
	// collector, or it them (OBS-08): they get a copy when they are made. "": none.
	Certificate string
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

	changing locks // who may ask for a change of a project, or whether it needs one
	projects locks // who may change the containers of a project: the former, or the supervisor
	packages locks // who may change its extracted packages
	changes  chan struct{}
	released chan struct{} // poked when Apply or Remove lets go of a project
	health   *health.Monitor

	back    chan struct{} // closed once everything that was found first was tended
	once    sync.Once     // closes it
	looking atomic.Int64  // when Run began what it does now, since begun; 0: it waits for news
	begun   time.Time

	ports     sync.Mutex // one change of what projects share on the network at a time
	mu        sync.Mutex
	claims    map[string]placement // of the projects that Apply or Remove works on
	ended     uint64               // claims that are no more
	history   map[string]*history  // by container
	held      map[string]bool      // projects that Apply or Remove works on, or waits for
	left      map[string]bool      // projects that LeaveAlone names
	tended    map[string]func()    // by project that the supervisor works on; lets go of it
	changed   map[string]change    // by project
	waits     map[string][]Wait    // by project, by the last plan
	watches   map[*watch]bool      // that are to hear of changes of health
	loads     int
	lastLoads map[string]int // directory of an extracted package -> when it was last loaded
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
		return nil, errors.New("cannot make runtime: containerd client and namespace are needed")
	case !filepath.IsAbs(o.StateDir) || !filepath.IsAbs(o.RunDir):
		return nil, errors.New("cannot make runtime: state and run directory must be absolute paths")
	}
	for _, dir := range []string{o.StateDir, o.RunDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("cannot make runtime: %w", err)
		}
	}

	images, err := image.New(image.Options{
		Client: o.Client, Registries: o.Registries, Preload: o.Preload, Keys: o.Keys, AtOnce: o.Pulls, Logger: o.Logger,
		State: o.StateDir, Reserve: o.Reserve,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make runtime: %w", err)
	}
	networks, err := network.New(network.Options{RunDir: o.RunDir, Publish: o.Publish, Logger: o.Logger, Contained: o.Contained})
	if err != nil {
		return nil, fmt.Errorf("cannot make runtime: %w", err)
	}
	containers, err := container.New(container.Options{
		Client:      o.Client,
		Namespace:   o.Namespace,
		Snapshotter: images.Snapshotter,
		StateDir:    o.StateDir,
		RunDir:      o.RunDir,
		OtherShim:   o.OtherShim,
		Init:        o.Init,
		LogDir:      o.LogDir,
		LogKeep:     o.LogKeep,
		Environment: o.Environment,
		Certificate: o.Certificate,
		Logger:      o.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make runtime: %w", err)
	}
	e := &Engine{
		o:          o,
		images:     images,
		containers: containers,
		networks:   networks,
		changes:    make(chan struct{}, 1),
		released:   make(chan struct{}, 1),
		back:       make(chan struct{}),
		begun:      time.Now(),
		claims:     make(map[string]placement),
		history:    make(map[string]*history),
		held:       make(map[string]bool),
		left:       make(map[string]bool),
		tended:     make(map[string]func()),
		changed:    make(map[string]change),
		lastLoads:  make(map[string]int),
		waits:      make(map[string][]Wait),
		watches:    make(map[*watch]bool),
	}
	e.health = health.New(health.Options{Exec: e.probe, Changed: e.tellWatches})
	return e, nil
}

// Close ends the probes of containers. The containers go on.
func (e *Engine) Close() { e.health.Close() }

// Changes is poked when something managed stopped, died or vanished outside of Apply and Remove.
func (e *Engine) Changes() <-chan struct{} { return e.changes }

// within is ctx for calls to containerd: its services in this process take the
// namespace from nowhere else.
func (e *Engine) within(ctx context.Context) context.Context {
	return containerd.WithNamespace(ctx, e.o.Namespace)
}

// poke wakes whoever waits for c, now or the next time.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// locks are one lock per project.
type locks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // holds a token while locked
}

func (l *locks) of(project string) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held = make(map[string]chan struct{})
	}
	if l.held[project] == nil {
		l.held[project] = make(chan struct{}, 1)
	}
	return l.held[project]
}

// lock waits for the project, or for the end of ctx.
func (l *locks) lock(ctx context.Context, project string) (unlock func(), err error) {
	c := l.of(project)
	select {
	case c <- struct{}{}:
		return func() { <-c }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot wait for another change of project %s: %w", project, ctx.Err())
	}
}

// tryLock does not wait.
func (l *locks) tryLock(project string) (unlock func(), ok bool) {
	c := l.of(project)
	select {
	case c <- struct{}{}:
		return func() { <-c }, true
	default:
		return nil, false
	}
}
