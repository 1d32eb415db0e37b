package agent

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/contain"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/store"
)

// WFM is the Workload Fleet Manager as the agent sees it.
type WFM interface {
	// Identity names the one WFM that this device obeys, since manifest versions of another do
	// not compare. It onboards the device first if necessary. While it fails, there is no
	// way to a WFM and the other methods fail, too.
	Identity(ctx context.Context) (string, error)
	// Audience names the receiver of reports and capabilities, if known: the WFM of Identity
	// unless the desired state comes from elsewhere.
	Audience() string
	Manifest(ctx context.Context, etag string) (*wfm.Manifest, error)
	// Documents gives each needed document to keep, verified and once; keep must not hold on to
	// the bytes. With an error some may be missing.
	Documents(ctx context.Context, m *wfm.Manifest, need []margo.DeploymentRef, keep func(digest.Digest, []byte) error) error
	PostStatus(ctx context.Context, deploymentID string, body []byte) error
	PutCapabilities(ctx context.Context, deviceID string, body []byte) error
	DeleteCapabilities(ctx context.Context, deviceID string) error
	// ClientID is the id that the WFM gave this device; empty: none, or not known yet.
	ClientID() string
	// Describe tells how the WFM knows this device. It makes no request.
	Describe() control.IdentityStatus
}

// Runtime runs Compose projects.
type Runtime interface {
	FetchPackage(ctx context.Context, ref runtime.PackageRef, progress func(runtime.Progress)) (*runtime.Package, error)
	Load(ctx context.Context, s runtime.Source) (*runtime.Project, error)
	Unsigned(ctx context.Context, p *runtime.Project, pins map[string]digest.Digest, keys image.Keyring) (map[string]string, error)
	Complete(ctx context.Context, p *runtime.Project, pins map[string]digest.Digest) (bool, error)
	Stage(ctx context.Context, p *runtime.Project, pins map[string]digest.Digest, progress func(runtime.Progress)) (map[string]digest.Digest, error)
	Apply(ctx context.Context, p *runtime.Project, o runtime.ApplyOptions) error
	Matches(ctx context.Context, p *runtime.Project) (bool, error)
	Outline(p *runtime.Project) (runtime.Outline, error)
	Intact(ctx context.Context, o runtime.Outline) (bool, error)
	Remove(ctx context.Context, project string) error
	RemoveWith(ctx context.Context, project string, o runtime.RemoveOptions) error
	Observe(ctx context.Context) ([]runtime.ObservedProject, error)
	ObserveProject(ctx context.Context, name string) (runtime.ObservedProject, error)
	LogLines(ctx context.Context, r runtime.LogsRequest, each func(runtime.LogLine) error) error
	Exec(ctx context.Context, in runtime.ObservedContainer, x container.Exec) (int, error)
	StoredVolumes(ctx context.Context) ([]runtime.StoredVolume, error)
	RemoveVolume(ctx context.Context, project, name string) error
	ImageSize(ctx context.Context, ref string, d digest.Digest) (int64, error)
	UnusedImages(ctx context.Context, keep runtime.Keep) ([]runtime.UnusedImage, error)
	Prune(ctx context.Context, keep runtime.Keep) ([]string, error)
	Spare(ctx context.Context) error
	Changes() <-chan struct{}
	Changed() (projects []string, all bool)
}

// Gate decides whether a change may happen now, and what a workload may ask for.
type Gate interface {
	RulesFor(deployment string, labels map[string]string) policy.Rules
	Decide(c policy.Change, s policy.Situation) policy.Verdict
	Admit(deployment string, ask policy.Ask) []policy.Refusal
}

// Device is the configured description of this device; empty fields come from the machine.
type Device struct {
	ID           string `yaml:"id" is:"deviceID?"`
	Vendor       string `yaml:"vendor" is:"line"`
	ModelNumber  string `yaml:"modelNumber" is:"line"`
	SerialNumber string `yaml:"serialNumber" is:"line"`
	// Values are as YAML has them: a string, number, boolean, or a list of strings or numbers.
	Labels map[string]any   `yaml:"labels" names:"line"`
	Offer  capability.Offer `yaml:",inline"` // of what the machine has
}

// Options is what an Agent needs. Fields are required unless they say otherwise.
type Options struct {
	Settings Settings // at the start
	Program  control.AgentStatus

	WFM     WFM
	Store   *store.Store
	Runtime Runtime
	Facts   func() (capability.Facts, error) // what the machine offers
	// Watch calls changed, which does not block, when Facts may have changed, until ctx is done.
	// It fails if the machine reports no changes; each poll looks at the machine anyway.
	Watch func(ctx context.Context, changed func()) error
	// StateDir and RunDir, with the lock files, must not be mounted by workloads.
	StateDir, RunDir string
	Logger           *slog.Logger
	Now              func() time.Time
	// ClockWrong says that Now is not to be trusted.
	ClockWrong func() bool
	// Meter tells what the runtime does and uses; nil: not known.
	Meter Meter
	// Reserve is how many bytes are to stay free on the file system of StateDir.
	Reserve int64
	// Starts counts the agent's starts within a day, including this one; 0: not known. Crash is
	// the panic that ended a former process, if any.
	Starts int
	Crash  *control.Mistake
	// Exports counts metrics sent to a collector and failures; nil: they are not sent.
	Exports func() (sent, failures int64, last error)
	// Random spreads requests over time; nil: math/rand.
	Random pace.Random
}

// Meter is what the runtime reports about itself and its containers' use of the device.
type Meter interface {
	Busy() time.Duration                                           // time without progress of its loop; 0: it waits for something to do
	Usage(ctx context.Context) (map[string]container.Usage, error) // by container
	Downloaded() int64                                             // bytes
}

type base struct {
	wfm      WFM
	store    *store.Store
	runtime  Runtime
	facts    func() (capability.Facts, error)
	settings *settings
	hub      *hub
	logger   *slog.Logger
	now      func() time.Time
	moment   func() pace.Moment // the present by both clocks
	mistakes *mistakes
	heads    cache[digest.Digest, head] // of documents
}

// Agent keeps the device in the state that the WFM wants.
type Agent struct {
	*base
	o          Options
	silence    *pace.Silence
	ledger     *ledger
	poller     *poller
	reconciler *reconciler
	watcher    *watcher
	reporter   *reporter
	locks      *locks
	scrape     scrape
	loops      *loops
	*Projects
}

// New wires an agent; Run makes it work.
func New(o Options) *Agent {
	start := time.Now()
	if o.Random == nil {
		o.Random = rand.N
	}
	b := &base{
		wfm: o.WFM, store: o.Store, runtime: o.Runtime, facts: o.Facts, settings: &settings{}, hub: newHub(o.Now), logger: o.Logger,
		now: o.Now, moment: func() pace.Moment { return pace.Moment{Wall: o.Now(), Up: time.Since(start)} },
		mistakes: &mistakes{logger: o.Logger, now: o.Now, known: cache[string, bool]{most: maxMistakes}}, heads: cache[digest.Digest, head]{most: maxKnown},
	}
	b.settings.Store(&o.Settings)
	a := &Agent{base: b, o: o, Projects: NewProjects(o.Runtime, o.Settings.Settle)}
	var busy func() time.Duration
	if o.Meter != nil {
		busy = o.Meter.Busy
	}
	a.loops = newLoops(busy)
	a.silence = pace.NewSilence(pace.SilenceOptions{
		WFM: o.Settings.URL, Downtime: o.Settings.Poll.Downtime, Now: b.moment, Random: o.Random,
		Record: silenceRecord{o.Store, filepath.Join(o.RunDir, "silence")}, Logger: o.Logger,
	})
	o.Store.OnAppend(b.tell)
	a.reporter = newReporter(b, a.silence, &a.loops.reporter)
	a.ledger = &ledger{base: b, reported: a.reporter.poke, deaf: a.reporter.deaf}
	a.reporter.status = a.ledger.status
	a.ledger.turns = &turns{store: o.Store, came: func(id string) { a.reconciler.nudge(id) }}
	a.reconciler = newReconciler(b, o, a.ledger, a.Projects, &a.loops.reconciler)
	a.Projects.tidied, a.Projects.later, a.Projects.remembered = a.reconciler.tidied, a.reconciler.prune, a.ledger.needs
	a.ledger.passes, a.ledger.changed = a.reconciler.passes, a.reconciler.changed
	a.locks = newLocks(b, o, a.reconciler.lookAll)
	a.reconciler.locks = a.locks
	a.poller = newPoller(b, o.Random, a.silence, a.ledger, &a.loops.poller)
	a.poller.contact, a.poller.again = a.reporter.reached, a.reporter.tellAgain
	a.watcher = newWatcher(b, o.Watch, &a.loops.watcher, func() {
		poke(a.poller.changed)
		a.reconciler.again() // some may have waited for what has changed
	})
	return a
}

// Run works until ctx is done and its goroutines have ended. Containers keep running.
func (a *Agent) Run(ctx context.Context) error {
	a.noteStart()
	a.noteDamage()
	a.locks.prepare() // before containers that use them are started
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.reconciler.run(ctx) })
	g.Go(func() error { return a.poller.run(ctx) })
	g.Go(func() error { return a.reporter.run(ctx) })
	g.Go(func() error { return a.watcher.run(ctx) })
	g.Go(func() error {
		a.mistakes.note("removing lock files", contain.Call(func() error { a.locks.removeOrphans(ctx); return nil }))
		return nil
	})
	return g.Wait()
}

// Sync polls the WFM now, whatever the window or back-off, and returns the outcome. During
// downtime, and while the WFM asked for silence, the error is a control.ErrConflict.
func (a *Agent) Sync(ctx context.Context) error { return a.poller.sync(ctx, nil) }

// Subscribe delivers events until the returned function is called.
func (a *Agent) Subscribe() (<-chan control.Event, func()) { return a.hub.subscribe() }

// Stirred is poked for one listener when something happens besides polls; else all is at rest.
func (a *Agent) Stirred() <-chan struct{} { return a.hub.stirred }

// poke wakes the receiver of c, a channel with room for one: pokes in a row count as one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
