package agent_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/runtime/compose"
	"github.com/margolite/margolite/runtime/container"
	"github.com/margolite/margolite/runtime/image"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/expect"
)

const (
	deviceID = "edge-01"
	first    = "ad9b614e-8912-45f4-a523-372358765def"
	second   = "ad9b614e-8912-45f4-a523-372358765dee"
	patience = 2 * time.Minute // of waits, on a busy machine
)

// site is an agent with a real store, a WFM in memory and a runtime in memory.
type site struct {
	t        *testing.T
	wfm      *fakeWFM
	runtime  *fakeRuntime
	gate     *fakeGate
	machine  hardware
	set      agent.Settings
	logger   *slog.Logger
	dir      string
	runDir   string
	random   pace.Random
	onCommit func(verb string)
	// joins, if not nil, changes the options of an agent and returns what runs beside it.
	joins func(*agent.Options) (beside func(context.Context) error)
	known map[string][]string // what heard and hears saw of deployments

	store *store.Store
	agent *agent.Agent
	stop  func()
}

// newSite starts an agent on what the test prepared.
func newSite(t *testing.T, prepare ...func(*site)) *site {
	t.Helper()
	s := &site{
		t: t, known: map[string][]string{}, dir: t.TempDir(), runDir: t.TempDir(), wfm: newFakeWFM(), runtime: newFakeRuntime(), gate: &fakeGate{},
		set:    agent.Settings{Device: agent.Device{ID: deviceID}, URL: "https://wfm.example", Poll: pace.Rules{Interval: time.Hour}}, // the tests say when
		logger: slog.New(slog.DiscardHandler),
	}
	for _, p := range prepare {
		p(s)
	}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

// start starts an agent on what the former one left.
func (s *site) start() {
	s.t.Helper()
	var err error
	s.store, err = store.Open(filepath.Join(s.dir, "margolite.db"), store.Options{OnCommit: s.onCommit})
	check(s.t, err)
	options := agent.Options{
		Settings: s.settings(),
		WFM:      s.wfm,
		Store:    s.store,
		Runtime:  s.runtime,
		Facts: func() (capability.Facts, error) {
			return capability.Facts{CPU: capability.CPU{Cores: 1, Architecture: "arm"}, Memory: 64 << 20, Storage: 1 << 30, Peripherals: s.machine.found()}, nil
		},
		Watch:    s.machine.watch,
		StateDir: s.dir,
		RunDir:   s.runDir,
		Logger:   s.logger,
		Now:      time.Now,
		Random:   s.random,

		ClockWrong: func() bool { return false },
	}
	beside := func(context.Context) error { return nil }
	if s.joins != nil {
		beside = s.joins(&options)
	}
	s.agent = agent.New(options)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- s.agent.Run(ctx) }()
	go func() { done <- beside(ctx) }()
	s.stop = func() {
		cancel()
		expect.OK(s.t, errors.Join(<-done, <-done))
		expect.OK(s.t, s.store.Close())
		s.stop = func() {}
	}
}

// restart stops the agent and starts another one on its files, of which something may
// become meanwhile.
func (s *site) restart(meanwhile ...func()) {
	s.t.Helper()
	s.stop()
	for _, do := range meanwhile {
		do()
	}
	s.start()
}

func (s *site) settings() agent.Settings {
	s.set.Gate = s.gate
	return s.set
}

// configure gives the agent the present settings.
func (s *site) configure() { s.agent.Configure(s.settings()) }

// sync lets the agent poll and fails the test if that fails.
func (s *site) sync() {
	s.t.Helper()
	check(s.t, s.agent.Sync(s.t.Context()))
}

// refuses lets the agent poll and fails the test if that succeeds.
func (s *site) refuses() {
	s.t.Helper()
	expect.ErrorWith(s.t, s.agent.Sync(s.t.Context()), "", "the poll")
}

// fullStatus is everything that the agent tells.
func (s *site) fullStatus() *control.Status {
	s.t.Helper()
	return expect.Value(s.agent.Status(s.t.Context()))(s.t)
}

// publish makes documents the desired state and lets the agent poll.
func (s *site) publish(version uint64, documents map[string]string) {
	s.t.Helper()
	s.wfm.publish(version, documents)
	s.sync()
}

// heard waits until the WFM heard exactly these states of a deployment.
func (s *site) heard(id string, want ...string) {
	s.t.Helper()
	s.heardWithin(patience, id, want...)
}

// heardWithin is heard with more patience.
func (s *site) heardWithin(d time.Duration, id string, want ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	defer cancel()
	for {
		got, more := s.wfm.heard(id)
		if slices.Equal(got, want) {
			s.known[id] = got
			return
		}
		select {
		case <-more:
		case <-ctx.Done():
			s.t.Fatalf("the WFM heard %v of %s, want %v", got, id, want)
		}
	}
}

// hears is heard of the states that came since it or heard was last asked.
func (s *site) hears(id string, more ...string) {
	s.t.Helper()
	s.heard(id, append(slices.Clip(s.known[id]), more...)...)
}

// heardError fails the test unless the last that the WFM heard of a deployment is an
// error with this code, whose message has these texts.
func (s *site) heardError(id, code string, texts ...string) {
	s.t.Helper()
	e := s.wfm.last(id).Error
	if e == nil || e.Code != code || e.Message == "" ||
		slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(e.Message, text) }) {
		s.t.Errorf("the WFM heard error %+v of %s, want %s with %q", e, id, code, texts)
	}
}

// made fails the test unless the runtime made a step so often.
func (s *site) made(step string, want int) {
	s.t.Helper()
	expect.Equal(s.t, s.runtime.count(step), want, "times of %q", step)
}

// runs fails the test unless exactly these projects run.
func (s *site) runs(want ...string) {
	s.t.Helper()
	expect.Equal(s.t, s.runtime.running(), want, "running")
}

// wroteNothing fails the test unless the store, which had written so often before, has written
// no more.
func (s *site) wroteNothing(before int64) {
	s.t.Helper()
	expect.Equal(s.t, s.store.Writes()-before, 0, "transactions")
}

// document is an ApplicationDeployment of one Compose component.
func document(id, revision string, more ...string) string {
	return documentOf(id, map[string]string{"main": revision}, more...)
}

// documentOf is an ApplicationDeployment of Compose components, by name.
func documentOf(id string, revisions map[string]string, more ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `id: %s
metadata: {name: app, namespace: n, deviceId: %s}
spec:
  applicationId: app
  deploymentProfile:
    type: compose
    components:
`, id, deviceID)
	for _, name := range slices.Sorted(maps.Keys(revisions)) {
		fmt.Fprintf(&b, `      - name: %s
        properties: {repository: "oci://registry.example/app", revision: %s}
`, name, revisions[name])
	}
	return b.String() + strings.Join(more, "\n")
}

// DS-06, DS-11, DS-18: what the WFM serves wrongly changes nothing.
func TestDS06ManifestsAreRefused(t *testing.T) {
	s := newSite(t)
	s.updates(5, "1.0.0", "pending@5", "installing@5", "installed@5")
	s.quiet()
	for name, wrong := range map[string]func(){
		"DS-06 lower version":                              func() { s.wfm.publish(4, nil) },
		"DS-02 DS-06 same version with other content A-03": func() { s.wfm.publish(5, nil) },
		"DS-18 documents that do not verify": func() {
			s.wfm.publish(6, map[string]string{first: document(first, "2.0.0")})
			s.wfm.fail("documents", wfm.ErrDigestMismatch)
		},
		"DS-16 a bundle that is not acceptable": func() {
			s.wfm.publish(6, map[string]string{first: document(first, "2.0.0")})
			s.wfm.fail("documents", wfm.ErrBundle)
		},
		"an answer that is no manifest":       func() { s.wfm.fail("manifest", wfm.ErrContentType) },
		"DS-11 a manifest that breaks a rule": func() { s.wfm.fail("manifest", margo.Errors{{Requirement: "DS-11", Message: "sha512"}}) },
	} {
		t.Run(name, func(t *testing.T) {
			wrong()
			writes := s.store.Writes() // and one more, for the journal
			for range 2 {
				s.refuses()
			}
			s.wfm.fail("", nil)
			st := s.fullStatus()
			if st.Manifest.Version != 5 || st.WFM.Refused == "" || s.store.Writes() != writes+1 {
				t.Errorf("manifest is %+v, refused %q, %d writes", st.Manifest, st.WFM.Refused, s.store.Writes()-writes)
			}
		})
	}
	s.updates(7, "3.0.0", "pending@5", "installing@5", "installed@5", "pending@5", "installing@7", "installed@7")
}

// DS-05: nothing is written for a manifest that did not change, whether the
// WFM says so or serves it again.
func TestDS05UnchangedManifestWritesNothing(t *testing.T) {
	s := installedSite(t)
	s.quiet()
	writes := s.store.Writes()
	for _, always200 := range []bool{false, true} {
		s.wfm.set(func() { s.wfm.full = always200 })
		for range 10 {
			s.sync()
		}
	}
	s.wroteNothing(writes)
}

// quiet waits until the outbox is empty.
func (s *site) quiet() {
	s.t.Helper()
	events, cancel := s.agent.Subscribe()
	defer cancel()
	for {
		// A commit of nothing waits for the one that is being made.
		check(s.t, s.store.Commit("nothing", store.Change{}))
		if left, err := s.store.CountReports(); err != nil || left == 0 {
			return
		}
		select {
		case <-events:
		case <-time.After(10 * time.Millisecond): // the acknowledgement has no event
		}
	}
}

// A failed update is reported at once, and the former revision runs.
func TestPOL08FailedUpdateGoesBack(t *testing.T) {
	for name, c := range map[string]struct {
		sabotage func(r *fakeRuntime)
		code     string
	}{
		"a container that ends at once": {func(r *fakeRuntime) { r.fail("apply 2.0.0", runtime.Exited) }, "CONTAINER_EXITED"},
		"an image that is missing":      {func(r *fakeRuntime) { r.fail("stage 2.0.0", runtime.NotFound) }, "ARTIFACT_NOT_FOUND"},
		"a key that is not supported":   {func(r *fakeRuntime) { r.fail("load 2.0.0", runtime.Unsupported) }, "COMPOSE_UNSUPPORTED"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.bothInstalled()
			c.sabotage(s.runtime)
			s.publish(2, map[string]string{first: document(first, "2.0.0"), second: document(second, "1.0.0")})
			want := []string{"pending@1", "installing@1", "installed@1", "pending@1"}
			if c.code == "CONTAINER_EXITED" {
				want = append(want, "installing@2")
			}
			s.heard(first, append(want, "failed@2")...)
			last := s.wfm.last(first)
			s.heardError(first, c.code)
			expect.Equal(t, last.Error.Source, "app", "source of the error")
			expect.Equal(t, len(last.Components), 1, "components")
			expect.Equal(t, last.Components[0].Error.Source, "main", "source of the error of the component")
			s.runtime.await(t, first+"-main 1.0.0", second+"-main 1.0.0")

			// The same after a restart, which reports nothing new.
			s.reboot()
			s.runtime.await(t, first+"-main 1.0.0", second+"-main 1.0.0")
			s.publish(3, map[string]string{first: document(first, "3.0.0"), second: document(second, "1.0.0")})
			s.heard(first, append(want, "failed@2", "pending@2", "installing@3", "installed@3")...)
			s.heard(second, "pending@1", "installing@1", "installed@1")
		})
	}
}

// DEV-05: what this device can never run fails alone.
func TestAD02AD03AD14AD15DeploymentsThatCannotRunHere(t *testing.T) {
	for name, test := range map[string]struct{ doc, code string }{
		"another type":                    {strings.Replace(document(first, "1.0.0"), "type: compose", "type: helm", 1), "UNSUPPORTED_TYPE"},
		"DS-02 a device behind this one":  {strings.Replace(document(first, "1.0.0"), deviceID, deviceID+"/child", 1), "WRONG_DEVICE"},
		"no document":                     {"spec: [", "INVALID_DOCUMENT"},
		"AD-02 one of another deployment": {document(second, "1.0.0"), "INVALID_DOCUMENT"},
		"parameters that contradict": {
			document(first, "1.0.0", "  parameters:", "    a: {value: 1, targets: [{pointer: X, components: [main]}]}", "    b: {value: 2, targets: [{pointer: X, components: [main]}]}"),
			"INVALID_PARAMETERS",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.publish(1, map[string]string{first: test.doc, second: document(second, "1.0.0")})
			s.heard(second, "pending@1", "installing@1", "installed@1")
			s.heard(first, "pending@1", "failed@1")
			s.heardError(first, test.code)
		})
	}
}

// What is not understood is never silent, neither before nor after a restart.
func TestWhatIsNotUnderstoodIsTold(t *testing.T) {
	var l log
	s := newSite(t, logged(&l))
	s.runtime.unused = map[string]bool{"B": true}
	s.publish(1, map[string]string{
		first: document(first, "1.0.0", "  replicas: 3", "  parameters:",
			"    a: {value: 1, targets: [{pointer: A, components: [main]}]}",
			"    b: {value: 2, targets: [{pointer: B, components: [main]}]}",
			"    c: {value: 3, targets: [{pointer: a.b, components: [main]}]}",
			"    d: {value: 8094, targets: [{pointer: PORTS.80, components: [main]}]}"),
		second: document(second, "1.0.0", "  parameters:", "    a: {valueFrom: {device: {key: line}}, targets: [{pointer: A, components: [main]}]}"),
	})
	s.heard(first, "pending@1", "installing@1", "installed@1")
	s.heard(second, "pending@1", "failed@1")
	s.heardError(second, "INVALID_DOCUMENT", "/spec/parameters/a/valueFrom: is not known")
	for _, want := range [][]string{{"no service reads", `parameters="[b c]"`}, {"not applied", `a.b`}, {"ignored", "/spec/replicas"}} {
		expect.Equal(t, len(l.with(append(want, first)...)), 1, "lines of log with %q", want)
	}
	expect.True(t, s.runtime.count("publish 80/tcp on 8094") > 0, "the port of a parameter does not reach the runtime")
	told := func() bool {
		st := s.fullStatus()
		return slices.ContainsFunc(st.Deployments, func(d control.Deployment) bool { return d.ID == first && slices.Equal(d.Unread, []string{"b", "c"}) })
	}
	expect.Equal(t, told(), true, "the status names the parameters that nobody reads")
	s.restart()
	s.eventually("the status tells it again", told)
}

// AD-11, AD-12: what asks for another device fails before anything of it is
// fetched, and goes on by itself when the device has become that one.
func TestAD11AD12DeploymentsForAnotherKindOfDevice(t *testing.T) {
	rule := "  deploymentProfile:\n    deviceConstraints:\n      "
	for name, test := range map[string]struct{ constraint, code string }{
		"AD-12 more memory than there is": {"capacityRequirements: {memory: 1Gi}", "MARGO_INSUFFICIENT_CAPACITY"},
		"AD-11 a label that it has not":   {"eligibilityRules: [{labelSelector: {matchExpressions: [{key: line, operator: In, values: [7]}]}}]", "MARGO_NOT_ELIGIBLE"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.runtime.fail("fetch 1.0.0", runtime.InvalidPackage) // nobody asks for it
			s.publish(1, map[string]string{first: strings.Replace(document(first, "1.0.0"), "  deploymentProfile:\n", rule+test.constraint+"\n", 1)})
			s.heard(first, "pending@1", "failed@1")
			s.heardError(first, test.code)
			s.runtime.fail("fetch 1.0.0", "")
			s.set.Device.Labels = map[string]any{"line": 7}
			s.configure()
			if test.code == "MARGO_NOT_ELIGIBLE" {
				s.heard(first, "pending@1", "failed@1", "pending@1", "installing@1", "installed@1")
			}
		})
	}
}

// Capabilities are reported before anything is asked for, and not again while
// nothing changed (CAP-03), also not after a restart.
func TestCAP01CapabilitiesComeFirst(t *testing.T) {
	s := newSite(t)
	s.sync()
	s.restart()
	s.sync()
	expect.Equal(t, s.wfm.calls()[0], "capabilities", "first call")
	expect.Equal(t, s.wfm.count("capabilities"), 1, "reports of capabilities")
}

// guarded is what a test and an agent share.
type guarded struct{ mu sync.Mutex }

// set changes what a fake is like.
func (g *guarded) set(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}

// read is what a fake knows.
func read[T any](g *guarded, what func() T) (known T) {
	g.set(func() { known = what() })
	return known
}

// holds are the steps of a fake that wait, each of them once.
type holds struct {
	holding sync.Mutex
	held    map[string]held
}

type held struct{ begun, goes chan struct{} }

// block lets the next step of a kind wait until it is cancelled; the channel is closed
// when it does.
func (h *holds) block(step string) <-chan struct{} {
	begun, _ := h.hold(step)
	return begun
}

// hold is block for a step that goes on when release is called.
func (h *holds) hold(step string) (begun <-chan struct{}, release func()) {
	h.holding.Lock()
	defer h.holding.Unlock()
	one := held{make(chan struct{}), make(chan struct{})}
	if h.held == nil {
		h.held = map[string]held{}
	}
	h.held[step] = one
	return one.begun, func() { close(one.goes) }
}

// reach waits where a step is held.
func (h *holds) reach(ctx context.Context, step string) error {
	h.holding.Lock()
	one, is := h.held[step]
	delete(h.held, step)
	h.holding.Unlock()
	if !is {
		return nil
	}
	close(one.begun)
	select {
	case <-one.goes:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fakeWFM is a WFM in memory.
type fakeWFM struct {
	holds
	guarded

	version   uint64
	documents map[string]string
	history   map[string][]margo.Status // all reports, by deployment
	answers   map[string]error
	identity  string
	audience  string // empty: identity
	clientID  string
	etags     []string // with which the manifest was asked for
	closed    error    // why the device is not let in
	failures  map[string]error
	log       []string
	times     []time.Time     // of the calls in log
	fetched   []digest.Digest // documents, in order
	full      bool
	pause     time.Duration // before each status is taken
	more      chan struct{}
}

func newFakeWFM() *fakeWFM {
	return &fakeWFM{
		history: map[string][]margo.Status{}, answers: map[string]error{}, failures: map[string]error{},
		identity: "spiffe://factory.example/margo/wfm/plant", more: make(chan struct{}),
	}
}

func (f *fakeWFM) publish(version uint64, documents map[string]string) {
	f.set(func() { f.version, f.documents = version, documents })
}

// fail lets calls of one kind fail; with "" all succeed again.
func (f *fakeWFM) fail(call string, err error) {
	f.set(func() { f.failures = map[string]error{call: err} })
}

// answer lets reports about a deployment fail; with nil they succeed again.
func (f *fakeWFM) answer(id string, err error) { f.set(func() { f.answers[id] = err }) }

// told are all reports about a deployment.
func (f *fakeWFM) told(id string) []margo.Status {
	return read(&f.guarded, func() []margo.Status { return slices.Clone(f.history[id]) })
}

// count is how often one kind of call was made.
func (f *fakeWFM) count(call string) int { return count(f.calls(), call) }

// heard returns the reported states of a deployment, and a channel that is closed with the next report.
func (f *fakeWFM) heard(id string) (states []string, more <-chan struct{}) {
	more = read(&f.guarded, func() chan struct{} { return f.more })
	for _, s := range f.told(id) {
		states = append(states, fmt.Sprintf("%s@%d", s.State, s.AdoptedVersion))
	}
	return states, more
}

// last is the last report about a deployment.
func (f *fakeWFM) last(id string) (last margo.Status) {
	if all := f.told(id); len(all) > 0 {
		last = all[len(all)-1]
	}
	return last
}

func (f *fakeWFM) calls() []string {
	return read(&f.guarded, func() []string { return slices.Clone(f.log) })
}

func (f *fakeWFM) asked() int { return len(f.calls()) }

// call notes a call and says whether it fails. The caller holds mu.
func (f *fakeWFM) call(name string) error {
	f.log = append(f.log, name)
	f.times = append(f.times, time.Now())
	if err := f.failures[name]; err != errPanics {
		return err
	}
	panic(name + " panics")
}

func (f *fakeWFM) Describe() control.IdentityStatus { return control.IdentityStatus{} }

func (f *fakeWFM) Identity(context.Context) (id string, err error) {
	f.set(func() { id, err = f.identity, f.closed })
	return id, err
}

func (f *fakeWFM) DeleteCapabilities(_ context.Context, deviceID string) error {
	return read(&f.guarded, func() error { return f.call("delete " + deviceID) })
}

func (f *fakeWFM) ClientID() string { return read(&f.guarded, func() string { return f.clientID }) }

func (f *fakeWFM) Audience() string {
	return read(&f.guarded, func() string { return cmp.Or(f.audience, f.identity) })
}

func (f *fakeWFM) Manifest(ctx context.Context, etag string) (*wfm.Manifest, error) {
	_ = f.reach(ctx, "manifest")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.etags = append(f.etags, etag)
	if err := f.call("manifest"); err != nil {
		return nil, err
	}
	if f.version == 0 {
		return nil, wfm.ErrNotModified // nothing was published yet
	}
	m := &margo.StateManifest{Version: f.version}
	for _, id := range slices.Sorted(maps.Keys(f.documents)) {
		ref := margo.DeploymentRef{ID: id, Digest: digest.FromString(f.documents[id])}
		if !margo.IsDeploymentID(id) {
			m.Refused = append(m.Refused, margo.RefusedDeployment{DeploymentRef: ref, Reason: "the id is not safe"})
			continue
		}
		m.Deployments = append(m.Deployments, ref)
	}
	raw := fmt.Sprint(m.Version, m.Deployments)
	d := digest.FromString(raw)
	if !f.full && etag == `"`+d.String()+`"` {
		return nil, wfm.ErrNotModified
	}
	return &wfm.Manifest{StateManifest: m, Raw: []byte(raw), ETag: `"` + d.String() + `"`, Digest: d}, nil
}

func (f *fakeWFM) Documents(ctx context.Context, _ *wfm.Manifest, need []margo.DeploymentRef, keep func(digest.Digest, []byte) error) error {
	_ = f.reach(ctx, "documents")
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("documents"); err != nil {
		return err
	}
	given := map[digest.Digest]bool{}
	for _, ref := range need {
		if given[ref.Digest] {
			continue
		}
		given[ref.Digest] = true
		f.fetched = append(f.fetched, ref.Digest)
		if err := keep(ref.Digest, []byte(f.documents[ref.ID])); err != nil {
			return err
		}
	}
	return f.failures["after documents"]
}

func (f *fakeWFM) PostStatus(ctx context.Context, id string, body []byte) error {
	select {
	case <-time.After(read(&f.guarded, func() time.Duration { return f.pause })):
	case <-ctx.Done():
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("status"); err != nil {
		return err
	}
	if err := f.answers[id]; err != nil {
		return err
	}
	s, err := margo.ParseStatus(body)
	if err != nil {
		return err
	}
	f.history[id] = append(f.history[id], *s)
	close(f.more)
	f.more = make(chan struct{})
	return nil
}

// answered is the error of an answer with a status and a body, as wfm.Client
// makes it.
func answered(status int, body string) *wfm.Error {
	return &wfm.Error{Op: "report status", Status: status, Problem: margo.ParseProblem(margo.ProblemMediaType, status, []byte(body))}
}

func (f *fakeWFM) PutCapabilities(context.Context, string, []byte) error {
	return read(&f.guarded, func() error { return f.call("capabilities") })
}

// fakeGate is a gate that a test closes and opens, with rules for all deployments.
type fakeGate struct {
	guarded
	closed bool
	order  policy.Order
	rules  policy.Rules
	asked  int                                              // how often it was asked
	admits func(id string, ask policy.Ask) []policy.Refusal // nil: everything
}

// admit lets the gate look at what deployments ask for.
func (g *fakeGate) admit(admits func(id string, ask policy.Ask) []policy.Refusal) {
	g.set(func() { g.admits = admits })
}

func (g *fakeGate) close(closed bool) { g.set(func() { g.closed = closed }) }

// count is how often it was asked.
func (g *fakeGate) count() int { return read(&g.guarded, func() int { return g.asked }) }

// rule replaces the rules.
func (g *fakeGate) rule(r policy.Rules) { g.set(func() { g.rules = r }) }

func (g *fakeGate) RulesFor(string, map[string]string) policy.Rules {
	return read(&g.guarded, func() policy.Rules { return g.rules })
}

func (g *fakeGate) Admit(id string, ask policy.Ask) (refused []policy.Refusal) {
	g.set(func() {
		if g.admits != nil {
			refused = g.admits(id, ask)
		}
	})
	return refused
}

func (g *fakeGate) Decide(c policy.Change, s policy.Situation) policy.Verdict {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	if g.closed {
		return policy.Verdict{Reasons: []policy.Reason{{Code: "closed", Text: "the gate is closed"}}}
	}
	return policy.New(policy.Options{Rules: g.rules, Order: g.order}).Decide(c, s)
}

// fakeRuntime runs projects in memory. Its packages are their own revision.
type fakeRuntime struct {
	agent.Runtime // what the reconciler has no use for
	holds
	guarded

	projects map[string]*runtime.ObservedProject // Containers[0].Image holds the revision
	failures map[string]runtime.Code
	rival    string         // the project that holds the network of the one being applied
	counts   map[string]int // how often a step was made
	noisy    bool           // pokes when a project failed to start, as the engine does
	volumes  []runtime.StoredVolume
	images   []runtime.UnusedImage
	camera   func(what string)                      // sees each step that changes containers, before and after it
	services map[string]map[string]*compose.Service // by the revision of their package
	unused   map[string]bool                        // what projects have no use for
	changes  chan struct{}
	ended    []string // since the last call of Changed
	more     chan struct{}

	staging  func(revision string) error      // why its images do not fit
	unpacks  func(progress func(layers int))  // before images are unpacked
	slow     map[string]string                // why the images of a revision never come
	complete map[string]bool                  // the revisions whose images are on the device
	unsigned map[string]string                // why images are unsigned, by their references
	signed   bool                             // packages are
	pruned   func(keep runtime.Keep) []string // what goes
}

func newFakeRuntime() *fakeRuntime {
	return &fakeRuntime{
		projects: map[string]*runtime.ObservedProject{}, failures: map[string]runtime.Code{},
		counts: map[string]int{}, changes: make(chan struct{}, 1), more: make(chan struct{}),
		staging: func(string) error { return nil }, unpacks: func(func(int)) {},
		pruned: func(runtime.Keep) []string { return nil }, camera: func(string) {},
	}
}

// panics is what a step fails with that is to panic, and errPanics the same of a
// call of the WFM.
const panics runtime.Code = "panics"

var errPanics = errors.New("panics")

// fail lets what fail; with "" everything succeeds again.
func (f *fakeRuntime) fail(what string, code runtime.Code) { f.fails(code, what) }

// fails lets several steps fail at the same time.
func (f *fakeRuntime) fails(code runtime.Code, steps ...string) {
	f.set(func() {
		clear(f.failures)
		for _, step := range steps {
			f.failures[step] = code
		}
	})
}

// count is how often a step was made.
func (f *fakeRuntime) count(what string) int {
	return read(&f.guarded, func() int { return f.counts[what] })
}

// sum is how often steps of some kinds were made.
func (f *fakeRuntime) sum(kinds ...string) (sum int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for step, n := range f.counts {
		if kind, _, _ := strings.Cut(step, " "); slices.Contains(kinds, kind) {
			sum += n
		}
	}
	return sum
}

// looks is how often somebody looked at what runs.
func (f *fakeRuntime) looks() int { return f.sum("observe", "intact") }

// reset stops everything, as a reboot does.
func (f *fakeRuntime) reset() { f.set(func() { clear(f.projects) }) }

// end lets the container of a project end.
func (f *fakeRuntime) end(project string) {
	f.set(func() {
		f.projects[project].Containers[0].State = runtime.Stopped
		f.ended = append(f.ended, project)
	})
}

func (f *fakeRuntime) poke() {
	select {
	case f.changes <- struct{}{}:
	default:
	}
}

func (f *fakeRuntime) running() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for name, p := range f.projects {
		all = append(all, name+" "+p.Containers[0].Image)
	}
	slices.Sort(all)
	return all
}

// await waits until exactly these projects run.
func (f *fakeRuntime) await(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	timeout := time.After(patience)
	for {
		more := read(&f.guarded, func() chan struct{} { return f.more })
		if slices.Equal(f.running(), want) {
			return
		}
		select {
		case <-more:
		case <-timeout:
			t.Fatalf("running is %v, want %v", f.running(), want)
		}
	}
}

func (f *fakeRuntime) step(ctx context.Context, what string) error {
	code := read(&f.guarded, func() runtime.Code {
		f.counts[what]++
		return f.failures[what]
	})
	if err := f.reach(ctx, what); err != nil {
		return err
	}
	switch code {
	case "":
	case panics:
		panic(what + " panics")
	default:
		return &runtime.Error{Code: code, Object: "web", Err: errors.New(what + " fails")}
	}
	return nil
}

func (f *fakeRuntime) FetchPackage(ctx context.Context, ref runtime.PackageRef, _ func(runtime.Progress)) (*runtime.Package, error) {
	what := cmp.Or(ref.Revision, strings.TrimSpace(ref.Location+" "+ref.Key))
	if err := f.step(ctx, "fetch "+what); err != nil {
		return nil, err
	}
	return &runtime.Package{Data: []byte(what), Digest: digest.FromString(what), Signed: f.signed || ref.Trust != nil}, nil
}

func (f *fakeRuntime) Load(ctx context.Context, s runtime.Source) (*runtime.Project, error) {
	if err := f.step(ctx, "load "+string(s.Package)); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for port, on := range s.Ports {
		f.counts["publish "+port+" on "+on]++
	}
	loaded := &compose.Project{Services: f.services[string(s.Package)], Unused: f.unused}
	return &runtime.Project{Name: s.Project, Compose: loaded, Digest: digest.FromBytes(s.Package), Labels: map[string]string{
		"io.margo.deployment": s.Labels["io.margo.deployment"], "io.margo.component": s.Labels["io.margo.component"], "revision": string(s.Package),
	}}, nil
}

func (f *fakeRuntime) Unsigned(ctx context.Context, p *runtime.Project, _ map[string]digest.Digest, _ image.Keyring) (map[string]string, error) {
	if err := f.step(ctx, "look "+p.Labels["revision"]); err != nil {
		return nil, err
	}
	return read(&f.guarded, func() map[string]string { return maps.Clone(f.unsigned) }), nil
}

func (f *fakeRuntime) Complete(_ context.Context, p *runtime.Project, _ map[string]digest.Digest) (bool, error) {
	return read(&f.guarded, func() bool { return f.complete[p.Labels["revision"]] }), nil
}

func (f *fakeRuntime) Stage(ctx context.Context, p *runtime.Project, pins map[string]digest.Digest, progress func(runtime.Progress)) (map[string]digest.Digest, error) {
	f.mu.Lock()
	slow, unpacks, staging := f.slow[p.Labels["revision"]], f.unpacks, f.staging
	f.mu.Unlock()
	unpacks(func(layers int) { progress(runtime.Progress{Object: "image", Done: 1, Total: 1, Unpacks: layers}) })
	if slow != "" {
		progress(runtime.Progress{Object: "image", Done: 1, Total: 2, Slow: slow})
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err := f.step(ctx, "stage "+p.Labels["revision"]); err != nil {
		return nil, err
	}
	if err := staging(p.Labels["revision"]); err != nil {
		return nil, err
	}
	return map[string]digest.Digest{p.Labels["revision"] + " of " + p.Labels["io.margo.deployment"]: digest.FromString("image")}, nil
}

func (f *fakeRuntime) Apply(ctx context.Context, p *runtime.Project, _ runtime.ApplyOptions) error {
	f.mu.Lock()
	if f.rival != "" {
		if err := p.Joins("plant", f.rival); err != nil {
			f.mu.Unlock()
			return &runtime.Error{Code: runtime.Conflict, Object: p.Name, Err: err}
		}
	}
	f.camera("before apply " + p.Labels["revision"])
	f.projects[p.Name] = &runtime.ObservedProject{
		Name: p.Name, Labels: p.Labels,
		Containers: []runtime.ObservedContainer{{
			Container: container.Container{Image: p.Labels["revision"], State: runtime.Running, Labels: container.Labels{Service: "web"}},
		}},
	}
	f.camera("apply " + p.Labels["revision"])
	close(f.more)
	f.more = make(chan struct{})
	noisy := f.noisy
	f.mu.Unlock()
	err := f.step(ctx, "apply "+p.Labels["revision"])
	if err != nil {
		f.set(func() {
			if o := f.projects[p.Name]; o != nil {
				o.Containers[0].State = runtime.Stopped
			}
		})
		if noisy {
			f.poke()
		}
	}
	return err
}

func (f *fakeRuntime) Matches(_ context.Context, p *runtime.Project) (bool, error) {
	return read(&f.guarded, func() bool {
		o := f.projects[p.Name]
		return o != nil && o.Containers[0].Image == p.Labels["revision"] // whether it runs is not asked
	}), nil
}

func (f *fakeRuntime) Outline(p *runtime.Project) (runtime.Outline, error) {
	return runtime.Outline{Project: p.Name, Package: digest.FromString(p.Labels["revision"])}, nil
}

func (f *fakeRuntime) Intact(ctx context.Context, o runtime.Outline) (bool, error) {
	if err := f.step(ctx, "intact "+o.Project); err != nil {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.projects[o.Project]
	return p != nil && digest.FromString(p.Containers[0].Image) == o.Package, nil
}

func (f *fakeRuntime) Remove(ctx context.Context, project string) error {
	if err := f.step(ctx, "remove "+project); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.camera("before remove " + project)
	delete(f.projects, project)
	f.camera("remove " + project)
	close(f.more)
	f.more = make(chan struct{})
	return nil
}

func (f *fakeRuntime) Observe(ctx context.Context) ([]runtime.ObservedProject, error) {
	if err := f.step(ctx, "observe"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []runtime.ObservedProject
	for _, name := range slices.Sorted(maps.Keys(f.projects)) {
		p := *f.projects[name]
		p.Containers = slices.Clone(p.Containers)
		all = append(all, p)
	}
	return all, nil
}

func (f *fakeRuntime) ObserveProject(ctx context.Context, name string) (runtime.ObservedProject, error) {
	all, err := f.Observe(ctx)
	for _, p := range all {
		if p.Name == name {
			return p, err
		}
	}
	return runtime.ObservedProject{Name: name}, err
}

func (f *fakeRuntime) Prune(ctx context.Context, keep runtime.Keep) ([]string, error) {
	return read(&f.guarded, func() func(runtime.Keep) []string { return f.pruned })(keep), f.step(ctx, "prune")
}

func (f *fakeRuntime) Spare(ctx context.Context) error { return f.step(ctx, "spare") }

func (f *fakeRuntime) StoredVolumes(ctx context.Context) ([]runtime.StoredVolume, error) {
	return f.volumes, f.step(ctx, "measure")
}

func (f *fakeRuntime) RemoveVolume(context.Context, string, string) error { return nil }

func (f *fakeRuntime) UnusedImages(context.Context, runtime.Keep) ([]runtime.UnusedImage, error) {
	return read(&f.guarded, func() []runtime.UnusedImage { return f.images }), nil
}

func (f *fakeRuntime) ImageSize(context.Context, string, digest.Digest) (int64, error) {
	return 4096, nil
}

func (f *fakeRuntime) Changes() <-chan struct{} { return f.changes }

func (f *fakeRuntime) Changed() (projects []string, all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	projects, f.ended = f.ended, nil
	return projects, len(projects) == 0
}

func check(t testing.TB, err error) {
	t.Helper()
	expect.Check(t, err)
}

// conflict expects an error that is a conflict with the present state and whose text has a part in it.
func conflict(t testing.TB, err error, text string) {
	t.Helper()
	expect.Error(t, err, control.ErrConflict, "refusal")
	expect.ErrorWith(t, err, text, "refusal")
}

// within expects a number of at least and at most so many.
func within(t testing.TB, n, least, most int, what string, args ...any) {
	t.Helper()
	if n < least || n > most {
		t.Errorf("%s: got %d, want %d to %d", fmt.Sprintf(what, args...), n, least, most)
	}
}
