package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/clock"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/pace"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/capability"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/store"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/syscalls"
	"github.com/margolite/margolite/test/wfmsim"
)

const (
	day   = 24 * time.Hour
	week  = 7 * day
	month = 4 * week

	yearDomain = "factory.example"
	yearWFM    = "plant"
	yearClient = "gateway-7"
)

// TestAYearWithAnHourOfNetworkAWeek lives through months on simulated time: the
// agent as it is, with its store on a real file system, and the way to a WFM over
// real TLS; only containers are not real. MARGOLITE_MONTHS says how many months of
// four weeks, MARGOLITE_SEED which year it is.
//
// What it shows: every last state reaches the WFM, in order; neither memory nor
// the database grow, nor do goroutines or descriptors; a certificate that expired
// while nobody could do anything about it costs nothing but the time until it is
// replaced; a device that lost its clock comes back by itself.
func TestAYearWithAnHourOfNetworkAWeek(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: months of polls")
	}
	months, seed := 2, uint64(1)
	if text := os.Getenv("MARGOLITE_MONTHS"); text != "" {
		var err error
		if months, err = strconv.Atoi(text); err != nil || months < 2 {
			t.Fatalf("MARGOLITE_MONTHS is %q, want a number from 2 on", text)
		}
	}
	if text := os.Getenv("MARGOLITE_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	syncs, err := syscalls.OfProcess(os.Getpid(), syscalls.Syncs()...)
	if err != nil {
		t.Log("syncs are not counted:", err)
	} else {
		defer syncs.Close()
	}
	t.Logf("%d months, seed %d", months, seed)
	synctest.Test(t, func(t *testing.T) {
		y := newYear(t, seed, syncs)
		y.plan(months)
		y.live()
		y.end(months)
	})
}

// year is a device, its WFM, the network between them and those who look after
// all of it.
type year struct {
	t     *testing.T
	rand  *rand.Rand
	begin time.Time
	dir   string
	road  *road
	syncs *syscalls.Counter // nil: they are not counted

	// The WFM's side.
	roots     []*pki.Authority // the newest is the last
	wfm       *wfmsim.Server
	published map[string]int // revision by deployment; 0: it was taken back
	version   uint64

	// The device's.
	offset   time.Duration // of its clock
	expires  time.Time     // its certificate
	welcome  bool          // in this hour of network it had not
	replaced int64         // bytes of its files that were replaced
	logged   countingWriter
	gate     *fakeGate
	runtime  *fakeRuntime
	store    *store.Store
	uplink   *uplink.Uplink
	agent    *agent.Agent
	stop     func()
	polled   atomic.Int64 // polls, with those in vain

	plans []event

	mu       sync.Mutex
	seen     uint64              // the newest report that was looked at
	told     map[string][]string // states by deployment as they went into the outbox, from the one that was heard last on
	heard    int                 // the newest report of the present WFM that was looked at
	most     int                 // reports that waited
	commits  map[string]int      // by verb, this month
	before   totals
	rows     []row
	complete int // hours of network in which everything was told
	refused  int // hours in which the device was not let in
}

// event is something that somebody does.
type event struct {
	at   time.Duration
	what func()
}

// countingWriter is a log of which only the length is known.
type countingWriter struct{ n atomic.Int64 }

func (w *countingWriter) Write(p []byte) (int, error) {
	w.n.Add(int64(len(p)))
	return len(p), nil
}

func newYear(t *testing.T, seed uint64, syncs *syscalls.Counter) *year {
	y := &year{
		t: t, rand: rand.New(rand.NewPCG(seed, 0)), begin: time.Now(), dir: t.TempDir(), syncs: syncs,
		published: map[string]int{}, gate: &fakeGate{}, runtime: newFakeRuntime(),
		told: map[string][]string{}, commits: map[string]int{},
	}
	y.must(os.Mkdir(filepath.Join(y.dir, "state"), 0o700))
	y.road = newRoad()
	y.newRoot()
	y.renew(9 * week / 2)
	y.startWFM()
	y.start()
	t.Cleanup(func() {
		y.stop()
		y.must(y.wfm.Close())
		y.road.shut()
	})
	return y
}

func (y *year) must(err error) {
	y.t.Helper()
	if err != nil {
		y.t.Fatalf("after %s: %v", time.Since(y.begin), err)
	}
}

// newRoot makes the WFM's authority another one, and replaces the trust bundle
// of the device by one with all of them.
func (y *year) newRoot() {
	root, err := pki.NewAuthority(yearDomain, time.Now())
	y.must(err)
	y.roots = append(y.roots, root)
	bundle, err := pki.MarshalBundle(y.bundle())
	y.must(err)
	y.replace("trust-bundle.json", bundle)
}

func (y *year) bundle() *identity.TrustBundle {
	b := &identity.TrustBundle{Sequence: uint64(len(y.roots))}
	for _, r := range y.roots {
		b.Anchors = append(b.Anchors, r.Root)
	}
	return b
}

// renew replaces the device's certificate and its key.
func (y *year) renew(valid time.Duration) {
	svid, err := y.roots[len(y.roots)-1].IssueClient(yearWFM, yearClient, pki.Valid(time.Now().Add(-time.Minute), time.Now().Add(valid)))
	y.must(err)
	key, err := svid.KeyPEM()
	y.must(err)
	y.replace("device.key", key)
	y.replace("device.pem", svid.CertificatePEM())
	y.expires = time.Now().Add(valid)
}

// replace gives a file of the device new content and the present date, which the
// kernel would not know.
func (y *year) replace(name string, content []byte) {
	file := filepath.Join(y.dir, name)
	y.must(os.WriteFile(file+".new", content, 0o600))
	y.must(os.Chtimes(file+".new", time.Now(), time.Now()))
	y.must(os.Rename(file+".new", file))
	y.replaced += int64(len(content))
}

// startWFM starts a WFM that knows what is published, and has heard nothing yet.
func (y *year) startWFM() {
	svid, err := y.roots[len(y.roots)-1].IssueWFM(yearWFM, pki.Valid(time.Now().Add(-time.Minute), time.Now().Add(5*week)))
	y.must(err)
	y.wfm, err = wfmsim.New(wfmsim.Options{
		ID: identity.ID{TrustDomain: yearDomain, WFM: yearWFM}, SVID: svid.TLS(), Bundle: y.bundle(), Clients: []string{yearClient},
	})
	y.must(err)
	for _, id := range slices.Sorted(maps.Keys(y.published)) {
		y.put(id, max(y.published[id], 1))
		if y.published[id] == 0 {
			_, err := y.wfm.Remove(yearClient, id)
			y.must(err)
		}
	}
	if y.version > 0 {
		y.must(y.wfm.SetVersion(yearClient, y.version))
	}
	y.must(y.wfm.Serve(y.road.turn()))
	y.heard = 0
}

func (y *year) put(id string, revision int) {
	_, err := y.wfm.Publish(yearClient, []byte(document(id, fmt.Sprint(revision, ".0.0"))))
	y.must(err)
}

// publish makes a revision of a deployment what is wanted, 0: none.
func (y *year) publish(id string, revision int) {
	if revision == 0 {
		_, err := y.wfm.Remove(yearClient, id)
		y.must(err)
	} else {
		y.put(id, revision)
	}
	y.published[id] = revision
	y.version = y.wfm.Version(yearClient)
}

// start starts the agent on what the one before left.
func (y *year) start() {
	var err error
	y.store, err = store.Open(filepath.Join(y.dir, "state", "margolite.db"), store.Options{OnCommit: y.committed})
	y.must(err)
	known, err := uplink.KnownTime(y.store)
	y.must(err)
	logger := slog.New(slog.NewTextHandler(&y.logged, nil))
	present := clock.New(func() time.Time { return time.Now().Add(y.offset) }, y.begin, known)
	y.uplink, err = uplink.New(uplink.Options{
		URL: "https://" + y.road.Addr().String(), Certificate: filepath.Join(y.dir, "device.pem"), Key: filepath.Join(y.dir, "device.key"),
		TrustBundle: filepath.Join(y.dir, "trust-bundle.json"),
	}, uplink.Device{
		Records: y.store, Spool: y.store.Incoming(), Dir: filepath.Join(y.dir, "state"), Clock: present, Logger: logger, Dial: y.road.dial,
		Silence: func() time.Duration { return y.agent.Silence().Hold().Downtime }, Wake: func() { y.agent.Wake() },
	})
	y.must(err)
	y.agent = agent.New(agent.Options{
		Settings: agent.Settings{
			Device: agent.Device{ID: deviceID}, URL: "https://" + y.road.Addr().String(), Poll: pace.Rules{Interval: time.Minute}, Gate: y.gate,
			Reports: agent.Reports{Running: true, Grace: time.Minute}, Settle: 10 * time.Second,
		},
		WFM: y.uplink, Store: y.store, Runtime: y.runtime, StateDir: filepath.Join(y.dir, "state"), RunDir: y.dir, Logger: logger, Now: present.Now,
		Facts: func() (capability.Facts, error) {
			return capability.Facts{CPU: capability.CPU{Cores: 1, Architecture: "arm"}, Memory: 64 << 20, Storage: 1 << 30}, nil
		},
		ClockWrong: func() bool { _, wrong := present.Wrong(); return wrong },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- y.agent.Run(ctx) }()
	go func() { done <- y.uplink.Run(ctx) }()
	events, unsubscribe := y.agent.Subscribe()
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		for {
			select {
			case e := <-events:
				if e.Kind == control.PollSucceeded || e.Kind == control.PollFailed {
					y.polled.Add(1)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	y.stop = func() {
		unsubscribe()
		cancel()
		<-counted
		y.must(errors.Join(<-done, <-done, y.store.Close()))
		y.road.let(false, false) // as the kernel does for a process that ends
		y.stop = func() {}
	}
}

// committed is called after each transaction.
func (y *year) committed(verb string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.commits[verb]++
	reports, err := y.store.Reports(y.seen, 64)
	if err != nil {
		y.t.Error(err)
	}
	for _, r := range reports {
		body, err := y.store.ReportBody(r.Sequence)
		if err != nil {
			y.t.Error(err)
			continue
		}
		y.seen = r.Sequence
		y.told[r.Deployment] = append(y.told[r.Deployment], stateOf(y.t, body))
	}
	if n, err := y.store.CountReports(); err == nil {
		y.most = max(y.most, n)
	}
}

// stateOf is what a report says, with its time for none is like another.
func stateOf(t *testing.T, body []byte) string {
	s, err := margo.ParseStatus(body)
	if err != nil {
		t.Error(err)
		return ""
	}
	return fmt.Sprintf("%s@%d", s.State, s.AdoptedVersion)
}

// plan decides who does what, and when.
func (y *year) plan(months int) {
	ids := make([]string, 5)
	for i := range ids {
		ids[i] = fmt.Sprintf("ad9b614e-8912-45f4-a523-%012d", i)
	}
	at := func(from, to time.Duration) time.Duration { return from + time.Duration(y.rand.Int64N(int64(to-from))) }
	do := func(at time.Duration, what func()) { y.plans = append(y.plans, event{at, what}) }
	revision := 0
	for w := range months * 4 {
		from, to := time.Duration(w)*week, time.Duration(w+1)*week
		for range 1 + y.rand.IntN(3) { // two a week, about
			id := ids[y.rand.IntN(len(ids))]
			revision++
			r := revision
			if y.rand.IntN(8) == 0 {
				r = 0
			}
			do(at(from, to), func() {
				if r > 0 || y.published[id] > 0 {
					y.publish(id, r)
				}
			})
		}
		if w%4 == 2 {
			do(from, func() { y.gate.rule(policy.Rules{Approval: policy.ApproveUpdates}) })
			do(to-2*time.Hour, y.approveAll)
			do(to-time.Hour, func() { y.gate.rule(policy.Rules{}); y.runtime.poke() })
		}
		if w%4 == 1 {
			do(at(from, to), func() {
				_, err := y.agent.Hold(y.t.Context(), control.HoldRequest{Holder: "shift", Seconds: 8 * 3600, Caller: byHand})
				y.must(err)
			})
		}
		y.planFlaps(at(from, to-6*time.Hour), ids[y.rand.IntN(len(ids))])

		online := at(from+time.Hour, to-2*time.Hour)
		silently := w%2 == 1
		do(online, y.goOnline)
		do(online+time.Hour, func() { y.goOffline(silently) })
		if w%4 == 3 {
			do(to-time.Minute, y.measure) // nothing is on its way then
		}
	}
	// The certificate expires in the middle of week 5. Nobody has time for it, and
	// what the device hears in that week is that it is not let in.
	do(9*week/2+day, y.noticeExpiry)
	for w := 6; w < months*4; w += 6 {
		do(at(time.Duration(w)*week, time.Duration(w)*week+time.Minute), func() { y.renew(8 * week) })
	}
	do(at(week, 2*week), y.newRoot) // used by what is issued from the next month on
	// In the last fortnight the power goes, and with it the time.
	do(time.Duration(months*4-2)*week+time.Minute, y.loseClock)
}

// planFlaps lets a service end again and again for five hours. Most times it
// comes back by itself, as the runtime sees to; now and then it cannot.
func (y *year) planFlaps(from time.Duration, id string) {
	for at := from; at < from+5*time.Hour; at += time.Duration(1+y.rand.IntN(20)) * time.Minute {
		broken := y.rand.IntN(4) == 0
		y.plans = append(y.plans, event{at, func() { y.runtime.flap(id+"-main", broken) }})
	}
	y.plans = append(y.plans, event{from + 5*time.Hour, func() { y.runtime.flap(id+"-main", false) }})
}

// flap ends the container of a project. Where that is broken it is gone, and
// cannot be started until the next flap.
func (f *fakeRuntime) flap(project string, broken bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.failures)
	if p := f.projects[project]; p != nil {
		p.Containers[0].State = runtime.Stopped
		if broken {
			f.failures["apply "+p.Containers[0].Image] = runtime.Exited
			delete(f.projects, project)
		}
	}
	f.poke()
}

// live lets everybody do as planned.
func (y *year) live() {
	slices.SortStableFunc(y.plans, func(a, b event) int { return int(a.at - b.at) })
	for _, e := range y.plans {
		time.Sleep(e.at - time.Since(y.begin))
		e.what()
		synctest.Wait()
	}
}

// approveAll says yes to whatever waits.
func (y *year) approveAll() {
	for _, d := range y.status().Deployments {
		if d.Change != nil {
			y.must(y.agent.Approve(y.t.Context(), control.AnswerRequest{Deployment: d.ID, Revision: d.Change.Revision, Caller: byHand}))
		}
	}
}

// goOnline opens the road for an hour.
func (y *year) goOnline() {
	y.road.let(true, false)
	y.welcome = time.Now().Before(y.expires)
}

// goOffline ends the hour, and looks at what the WFM has heard in it.
func (y *year) goOffline(silently bool) {
	st := y.status()
	y.road.let(false, silently)
	synctest.Wait()
	waiting, err := y.store.CountReports()
	y.must(err)

	y.mu.Lock()
	defer y.mu.Unlock()
	heard := map[string][]string{}
	for _, r := range y.wfm.Statuses("") {
		if r.Number > y.heard {
			y.heard = r.Number
			heard[r.Status.DeploymentID] = append(heard[r.Status.DeploymentID], stateOf(y.t, r.Body))
		}
	}
	if !y.welcome {
		if len(heard) > 0 || st.WFM.LastError == "" || !advised(st, "expired", "renew") {
			y.t.Errorf("with an expired certificate the WFM heard %v, the last error is %q, advice %v", heard, st.WFM.LastError, st.Identity.Warnings)
		}
		y.refused++
		return
	}
	for id, told := range y.told {
		if !inOrder(heard[id], told) {
			y.t.Errorf("after %s the WFM heard %v of %s, which went through %v", time.Since(y.begin), heard[id], id, told)
		}
		if waiting > 0 {
			continue // it is flapping just now
		}
		last := told[len(told)-1]
		if n := len(heard[id]); n > 0 && heard[id][n-1] != last || n == 0 && len(told) > 1 {
			y.t.Errorf("after %s the WFM heard %v of %s, which ended with %s", time.Since(y.begin), heard[id], id, last)
		}
		y.told[id] = told[len(told)-1:]
	}
	if waiting == 0 {
		y.complete++
	}
}

// inOrder says that what was heard was told, in this order.
func inOrder(heard, told []string) bool {
	for _, h := range heard {
		i := slices.Index(told, h)
		if i < 0 {
			return false
		}
		told = told[i:] // it may have been heard twice
	}
	return true
}

func (y *year) status() *control.Status {
	st, err := y.agent.Status(y.t.Context())
	y.must(err)
	return st
}

// advised says that people are told of something, and what to do about it.
func advised(st *control.Status, text, mend string) bool {
	return slices.ContainsFunc(st.Identity.Warnings, func(a control.Advice) bool {
		return strings.Contains(a.Text, text) && strings.Contains(a.Mend, mend)
	})
}

// noticeExpiry looks at what people are told of a certificate that has expired.
func (y *year) noticeExpiry() {
	if st := y.status(); !advised(st, "expired", "renew") || st.Identity.Expires == nil || st.Identity.Expires.After(time.Now()) {
		y.t.Errorf("nobody is told of the expired certificate: %+v", st.Identity)
	}
}

// loseClock takes the power from a device whose clock does not survive that.
func (y *year) loseClock() {
	running := y.runtime.running()
	y.stop()
	y.offset = -time.Since(time.Unix(0, 0))
	y.runtime.reset()
	y.start()
	synctest.Wait()
	if now := y.runtime.running(); !slices.Equal(now, running) {
		y.t.Errorf("after a start without a network %v runs, before it %v", now, running)
	}
	if st := y.status(); !advised(st, "clock is wrong", "set the clock") {
		y.t.Errorf("nobody is told of the clock: %+v", st.Identity.Warnings)
	}
}

// totals are what is counted from the begin on.
type totals struct {
	polls, dials, written, syncs, logged int64
	reports                              uint64
}

// row is a month.
type row struct {
	totals
	commits, outbox         int
	journal                 uint64
	size, heap              int64
	goroutines, descriptors int
	deployments             int // of which each has a goroutine
	verbs                   map[string]int
}

// measure ends a month. There is no network, and nobody is on the way.
func (y *year) measure() {
	y.must(y.wfm.Close())
	y.wfm = nil // what it remembers grows
	synctest.Wait()
	goruntime.GC()
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	r := row{heap: int64(m.HeapAlloc), goroutines: goruntime.NumGoroutine(), descriptors: descriptors(y.t)}
	r.deployments = len(y.status().Deployments)
	info, err := os.Stat(filepath.Join(y.dir, "state", "margolite.db"))
	y.must(err)
	r.size = info.Size()
	sum, err := y.store.VerifyJournal()
	y.must(err)
	r.journal = sum.Entries

	now := totals{polls: y.polled.Load(), dials: y.road.dialled(), logged: y.logged.n.Load(), written: writtenBySelf() - y.replaced}
	if y.syncs != nil {
		counts, err := y.syncs.Count()
		y.must(err)
		for _, n := range counts {
			now.syncs += n
		}
	}
	y.mu.Lock()
	now.reports = y.seen
	r.verbs, r.outbox = y.commits, y.most
	y.commits, y.most = map[string]int{}, 0
	y.mu.Unlock()
	for _, n := range r.verbs {
		r.commits += n
	}
	r.totals = totals{
		now.polls - y.before.polls, now.dials - y.before.dials, now.written - y.before.written, now.syncs - y.before.syncs,
		now.logged - y.before.logged, now.reports - y.before.reports,
	}
	y.before = now
	y.rows = append(y.rows, r)
	y.startWFM()
}

// descriptors is how many this process has open.
func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// writtenBySelf is how many bytes this process has handed to the kernel, 0 where
// that does not say.
func writtenBySelf() (n int64) {
	data, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		_, _ = fmt.Sscanf(line, "wchar: %d", &n)
	}
	return n
}

// end looks at the whole of it.
func (y *year) end(months int) {
	y.goOnline()
	time.Sleep(time.Hour)
	y.goOffline(false)
	if waiting, err := y.store.CountReports(); err != nil || waiting > 0 {
		y.t.Errorf("%d reports wait at the end, %v", waiting, err)
	}
	var want []string
	for id, r := range y.published {
		if r > 0 {
			want = append(want, fmt.Sprintf("%s-main %d.0.0", id, r))
		}
	}
	slices.Sort(want)
	if got := y.runtime.running(); !slices.Equal(got, want) {
		y.t.Errorf("at the end %v runs, want %v", got, want)
	}
	if least := months*4 - y.refused; y.complete < least*3/4 || y.refused == 0 {
		y.t.Errorf("in %d hours of network everything was told, in %d nothing could be; of %d", y.complete, y.refused, months*4)
	}
	y.print()

	first := y.rows[0]
	for i, r := range y.rows[1:] {
		// The journal grows up to its bound, which a year does not reach.
		if r.goroutines-r.deployments > first.goroutines-first.deployments || r.descriptors > first.descriptors || r.heap > first.heap+1<<20 || r.size > 4<<20 {
			y.t.Errorf("in month %d there is more than in the first one: %+v, then %+v", i+2, first, r)
		}
		if r.outbox > 16*len(y.published) {
			y.t.Errorf("in month %d %d reports waited", i+2, r.outbox)
		}
	}
}

// print shows the table.
func (y *year) print() {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "month\tpolls\tconnections\tcommits\tsyncs\tKB written\treports\tat most waiting\tjournal\tdatabase KiB\theap KiB\tdeployments\tgoroutines\tdescriptors\tKB logged\t")
	verbs := map[string]int{}
	for i, r := range y.rows {
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", i+1, r.polls, r.dials, r.commits, r.syncs, r.written/1000,
			r.reports, r.outbox, r.journal, r.size>>10, r.heap>>10, r.deployments, r.goroutines, r.descriptors, r.logged/1000)
		for verb, n := range r.verbs {
			verbs[verb] += n
		}
	}
	y.must(w.Flush())
	y.t.Logf("%d hours of network, of %d of them the certificate had expired\n%scommits: %v", y.complete+y.refused, y.refused, &text, verbs)
}
