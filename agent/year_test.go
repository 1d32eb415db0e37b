package agent_test

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	goruntime "runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/margolite/margolite/agent"
	"github.com/margolite/margolite/agent/clock"
	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/uplink"
	"github.com/margolite/margolite/policy"
	"github.com/margolite/margolite/runtime"
	"github.com/margolite/margolite/test/expect"
	"github.com/margolite/margolite/test/pki"
	"github.com/margolite/margolite/test/wfmsim"
)

const (
	week = 7 * 24 * time.Hour

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
// the database grow, nor do goroutines or descriptors; what runs comes back after a
// power cut without a network.
func TestAYearWithAnHourOfNetworkAWeek(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-all: months of polls")
	}
	months := max(2, expect.Value(strconv.Atoi(cmp.Or(os.Getenv("MARGOLITE_MONTHS"), "2")))(t))
	seed := expect.Value(strconv.ParseUint(cmp.Or(os.Getenv("MARGOLITE_SEED"), "1"), 10, 64))(t)
	t.Logf("%d months, seed %d", months, seed)
	synctest.Test(t, func(t *testing.T) {
		y := newYear(t, seed)
		y.plan(months)
		y.live()
		y.end(months)
	})
}

// year is a device, its WFM, the network between them and those who look after
// all of it.
type year struct {
	*site
	rand  *rand.Rand
	begin time.Time
	road  *road

	// The WFM's side.
	root      *pki.Authority
	files     pki.Files // of the device
	wfm       *wfmsim.Server
	published map[string]int // revision by deployment; 0: it was taken back
	version   uint64

	plans []event

	mu       sync.Mutex
	seen     uint64              // the newest report that was looked at
	told     map[string][]string // states by deployment as they went into the outbox, from the one that was heard last on
	heard    int                 // the newest report of the present WFM that was looked at
	most     int                 // reports that waited
	commits  int                 // this month
	rows     []row
	complete int // hours of network in which everything was told
}

// event is something that somebody does.
type event struct {
	at   time.Duration
	what func()
}

func newYear(t *testing.T, seed uint64) *year {
	y := &year{
		rand: rand.New(rand.NewPCG(seed, 0)), begin: time.Now(), road: &road{arrivals: make(chan net.Conn, 8)},
		published: map[string]int{}, told: map[string][]string{},
	}
	t.Cleanup(func() { // after the agent's end
		y.road.let(false, false) // as the kernel does for a process that ends
		y.must(y.wfm.Close())
	})
	newSite(t, func(s *site) {
		y.site = s
		s.set.Poll.Interval, s.set.Settle, s.set.Reports = time.Minute, 10*time.Second, agent.Reports{Running: true, Grace: time.Minute}
		s.machine.mute = true
		s.onCommit, s.joins = y.committed, y.connect
		y.enrol()
		y.startWFM()
	})
	return y
}

func (y *year) must(err error) {
	y.t.Helper()
	expect.Require(y.t, err == nil, "after %s: %v", time.Since(y.begin), err)
}

// enrol gives the device a certificate of the WFM's authority, its key, and the trust
// bundle.
func (y *year) enrol() {
	y.root = expect.Value(pki.NewAuthority(yearDomain, time.Now()))(y.t)
	svid := expect.Value(y.root.IssueClient(yearWFM, yearClient, y.valid()))(y.t)
	y.files = expect.Value(pki.WriteFiles(y.runDir, svid, y.bundle()))(y.t)
}

func (y *year) bundle() *identity.TrustBundle {
	return &identity.TrustBundle{Sequence: 1, Anchors: []*x509.Certificate{y.root.Root}}
}

// valid is the time of certificates: longer than anybody lives through here.
func (y *year) valid() pki.Option { return pki.Valid(y.begin.Add(-time.Minute), y.begin.Add(100*week)) }

// startWFM starts a WFM that knows what is published, and has heard nothing yet.
func (y *year) startWFM() {
	svid := expect.Value(y.root.IssueWFM(yearWFM, y.valid()))(y.t)
	y.wfm = expect.Value(wfmsim.New(wfmsim.Options{
		ID: identity.ID{TrustDomain: yearDomain, WFM: yearWFM}, SVID: svid.TLS(), Bundle: y.bundle(), Clients: []string{yearClient},
	}))(y.t)
	for _, id := range slices.Sorted(maps.Keys(y.published)) {
		y.put(id, max(y.published[id], 1))
		if y.published[id] == 0 {
			y.must(expect.ErrorOf(y.wfm.Remove(yearClient, id)))
		}
	}
	if y.version > 0 {
		y.must(y.wfm.SetVersion(yearClient, y.version))
	}
	y.must(y.wfm.Serve(y.road.listen()))
	y.heard = 0
}

func (y *year) put(id string, revision int) {
	y.must(expect.ErrorOf(y.wfm.Publish(yearClient, []byte(document(id, fmt.Sprint(revision, ".0.0"))))))
}

// publish makes a revision of a deployment what is wanted, 0: none.
func (y *year) publish(id string, revision int) {
	if revision == 0 {
		y.must(expect.ErrorOf(y.wfm.Remove(yearClient, id)))
	} else {
		y.put(id, revision)
	}
	y.published[id] = revision
	y.version = y.wfm.Version(yearClient)
}

// connect lets the agent reach its WFM over the road.
func (y *year) connect(o *agent.Options) (beside func(context.Context) error) {
	known := expect.Value(uplink.KnownTime(y.store))(y.t)
	present := clock.New(time.Now, y.begin, known)
	url := "https://" + y.road.Addr().String()
	up := expect.Value(uplink.New(uplink.Options{
		URL: url, Certificate: y.files.Certificate, Key: y.files.Key, TrustBundle: y.files.TrustBundle,
	}, uplink.Device{
		Records: y.store, Spool: y.store.Incoming(), Dir: y.dir, Clock: present, Logger: y.logger, Dial: y.road.dial,
		Silence: func() time.Duration { return y.agent.Silence().Hold().Downtime }, Wake: func() { y.agent.Wake() },
	}))(y.t)
	o.WFM, o.Settings.URL, o.Now = up, url, present.Now
	return up.Run
}

// committed is called after each transaction.
func (y *year) committed(string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.commits++
	reports, err := y.store.Reports(y.seen, 64)
	expect.OK(y.t, err)
	for _, r := range reports {
		body, err := y.store.ReportBody(r.Sequence)
		expect.OK(y.t, err)
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
	ids := slices.Sorted(maps.Keys(many(5, "")))
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
				y.must(expect.ErrorOf(y.agent.Hold(y.t.Context(), control.HoldRequest{Holder: "shift", Seconds: 8 * 3600, Caller: byHand})))
			})
		}
		y.planFlaps(at(from, to-6*time.Hour), ids[y.rand.IntN(len(ids))])

		online := at(from+time.Hour, to-2*time.Hour)
		silently := w%2 == 1
		do(online, func() { y.road.let(true, false) })
		do(online+time.Hour, func() { y.goOffline(silently) })
		if w%4 == 3 {
			do(to-time.Minute, y.measure) // nothing is on its way then
		}
	}
	do(time.Duration(months*4-2)*week+time.Minute, y.cutPower)
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
	for _, d := range y.fullStatus().Deployments {
		if d.Change != nil {
			y.must(y.agent.Approve(y.t.Context(), control.AnswerRequest{Deployment: d.ID, Revision: d.Change.Revision, Caller: byHand}))
		}
	}
}

// goOffline ends the hour, and looks at what the WFM has heard in it.
func (y *year) goOffline(silently bool) {
	y.road.let(false, silently)
	synctest.Wait()
	waiting := expect.Value(y.store.CountReports())(y.t)

	y.mu.Lock()
	defer y.mu.Unlock()
	heard := map[string][]string{}
	for _, r := range y.wfm.Statuses("") {
		if r.Number > y.heard {
			y.heard = r.Number
			heard[r.Status.DeploymentID] = append(heard[r.Status.DeploymentID], stateOf(y.t, r.Body))
		}
	}
	for id, told := range y.told {
		expect.Equal(y.t, inOrder(heard[id], told), true, "after %s the WFM heard %v of %s, which went through %v", time.Since(y.begin), heard[id], id, told)
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

// cutPower ends the agent and everything that runs.
func (y *year) cutPower() {
	running := y.runtime.running()
	y.stop()
	y.road.let(false, false)
	y.runtime.reset()
	y.start()
	synctest.Wait()
	expect.Equal(y.t, y.runtime.running(), running, "running after a start without a network")
}

// row is a month.
type row struct {
	commits, outbox         int
	size, heap              int64
	goroutines, descriptors int
	deployments             int // of which each has a goroutine
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
	r := row{heap: int64(m.HeapAlloc), goroutines: goruntime.NumGoroutine(), descriptors: len(expect.Value(os.ReadDir("/proc/self/fd"))(y.t))}
	r.deployments = len(y.fullStatus().Deployments)
	r.size = expect.Value(os.Stat(y.database()))(y.t).Size()
	y.mu.Lock()
	r.commits, r.outbox = y.commits, y.most
	y.commits, y.most = 0, 0
	y.mu.Unlock()
	y.rows = append(y.rows, r)
	y.startWFM()
}

// end looks at the whole of it.
func (y *year) end(months int) {
	y.road.let(true, false)
	time.Sleep(time.Hour)
	y.goOffline(false)
	expect.Equal(y.t, expect.Value(y.store.CountReports())(y.t), 0, "reports that wait at the end")
	var want []string
	for id, r := range y.published {
		if r > 0 {
			want = append(want, fmt.Sprintf("%s-main %d.0.0", id, r))
		}
	}
	slices.Sort(want)
	expect.Equal(y.t, y.runtime.running(), want, "running at the end")
	within(y.t, y.complete, months*3, months*4+1, "hours of network in which everything was told")

	first := y.rows[0]
	for i, r := range y.rows {
		y.t.Logf("month %d: %d transactions, at most %d reports waited, database %d KiB, heap %d KiB, %d deployments, %d goroutines, %d descriptors",
			i+1, r.commits, r.outbox, r.size>>10, r.heap>>10, r.deployments, r.goroutines, r.descriptors)
		// The journal grows up to its bound, which a year does not reach.
		if r.goroutines-r.deployments > first.goroutines-first.deployments || r.descriptors > first.descriptors || r.heap > first.heap+1<<20 || r.size > 4<<20 {
			y.t.Errorf("in month %d there is more than in the first one: %+v, then %+v", i+1, first, r)
		}
		within(y.t, r.outbox, 0, 16*len(y.published), "reports that waited in month %d", i+1)
	}
}

// road is the network between an agent and a WFM, which listens on it, in a bubble of
// synctest. Its connections are pipes: who waits for the other side does so in the
// bubble, where time goes on then.
type road struct {
	arrivals chan net.Conn // the WFM's ends of connections

	mu   sync.Mutex
	open bool
	ends []end
	over chan struct{} // is closed when the WFM does not listen any more
}

// dial is a wfm.Dial.
func (r *road) dial(_ context.Context, network, _ string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.open {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}
	}
	device, wfm := net.Pipe()
	lost := new(atomic.Bool)
	r.ends = append(r.ends, end{device, lost}, end{wfm, lost})
	r.arrivals <- end{wfm, lost}
	return end{device, lost}, nil
}

// let opens or closes the road. What was on it then is broken off, or, where it
// is closed in silence, nothing of it arrives any more and nobody is told; the
// WFM gives such connections up when the road opens again.
func (r *road) let(open, silently bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = open
	for _, e := range r.ends {
		if silently {
			e.lost.Store(true)
		} else {
			e.Conn.Close()
		}
	}
	if !silently {
		r.ends = nil
	}
}

// Addr is where the road leads.
func (r *road) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8443} }

// listen is the road for another WFM.
func (r *road) listen() *road {
	r.over = make(chan struct{})
	return r
}

func (r *road) Accept() (net.Conn, error) {
	select {
	case c := <-r.arrivals:
		return c, nil
	case <-r.over:
		return nil, net.ErrClosed
	}
}

// Close ends the road for the present WFM.
func (r *road) Close() error {
	close(r.over)
	return nil
}

// end is one side of a connection, on which nothing arrives any more once it is lost.
type end struct {
	net.Conn
	lost *atomic.Bool
}

func (e end) Write(p []byte) (int, error) {
	if e.lost.Load() {
		return len(p), nil
	}
	return e.Conn.Write(p)
}
