package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

const (
	manyDeployments = 1000
	largeDocument   = 50 << 10
	anew            = 10             // polls on connections of their own
	memoryGoal      = int64(8 << 20) // of a bundle above what an idle agent has
)

// scale is what talking to the WFM costs, and how much of it there may be.
type scale struct {
	Polls     int     `json:"polls"`
	PerPoll   traffic `json:"unchangedPoll"`           // on a connection that is there
	PerFresh  traffic `json:"unchangedPollConnecting"` // on a new one
	Hourly    float64 `json:"pollsPerHour"`            // at an interval of a minute
	Threads   int64   `json:"threadsBefore"`
	ThreadsTo int64   `json:"threadsAfter"` // the polls

	Bundle int64 `json:"bundleBytes"`
	First  first `json:"firstBundle"`
	Change deed  `json:"oneOfManyChanges"` // the median or the mean of a few
	Kept   deed  `json:"manifestAccepted"` // and nobody hears of it
	Told   deed  `json:"reportDelivered"`  // each of them
	Untold int   `json:"reports"`          // that were delivered so

	Benchmark *pollBenchmark `json:"benchmark,omitempty"`
}

// first is how a bundle of many deployments comes in.
type first struct {
	deed
	Idle       int64         `json:"idleAnonymous"`
	Streaming  int64         `json:"peakAboveIdle"` // until it is accepted
	Settling   int64         `json:"peakAboveIdleSettling"`
	IdleHeap   int64         `json:"idleHeap"`
	PeakHeap   int64         `json:"peakHeap"` // at any collection up to the end
	Settled    time.Duration `json:"settledNs"`
	Reports    int           `json:"reports"`
	WrittenAll written       `json:"writtenBytesSettled"`
}

// deed is what something took.
type deed struct {
	Took     time.Duration  `json:"tookNs"`
	CPU      time.Duration  `json:"cpuNs"`
	Requests map[string]int `json:"requests"` // by endpoint
	Traffic  traffic        `json:"traffic"`
	Written  written        `json:"writtenBytes"`
}

// scaling is the device that is measured, with its WFM's connections counted.
type scaling struct {
	*subject
	counter  *counter
	noise    *rand.Rand
	manifest margo.StateManifest
	raw      wfmsim.Raw
}

// measureScale measures margolite with Helm deployments, which it cannot run: they
// are fetched, kept and reported like any other, but start nothing.
func (b *bench) measureScale(ctx context.Context, dir string) (*scale, error) {
	r := &scale{}
	wire := &counter{}
	listener, err := wire.listen("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	native := b.native()
	d := deviceBench{method: b.method, dir: dir}
	how := setup{name: "scale", programs: []string{filepath.Join(native, "margolite"), filepath.Join(native, shimName)}}
	err = d.with(ctx, how, plant.Options{Listener: listener}, func(s *subject) error {
		m := &scaling{subject: s, counter: wire, noise: rand.New(rand.NewPCG(1, 2))}
		return m.all(ctx, r)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot measure many deployments: %w", err)
	}
	if b.agentTest != "" {
		r.Benchmark, err = benchmarkPolls(ctx, b.agentTest)
	}
	return r, err
}

func (m *scaling) all(ctx context.Context, r *scale) (err error) {
	if err := m.Configure(plant.Settings{Poll: time.Hour}); err != nil {
		return err
	}
	if err := m.Run(ctx, "GODEBUG=gctrace=1"); err != nil {
		return err
	}
	if _, err := m.rest(ctx); err != nil {
		return err
	}
	say("bytes of %d unchanged polls", m.method.Polls)
	if err := m.unchanged(ctx, r); err != nil {
		return err
	}
	say("a bundle of %d deployments", manyDeployments)
	if r.Bundle, err = m.fill(); err != nil {
		return err
	}
	if r.First, err = m.first(ctx); err != nil {
		return err
	}
	say("changes of one deployment of %d", manyDeployments)
	return m.changes(ctx, r)
}

// unchanged counts what polls cost that bring nothing, on one connection and on
// new ones.
func (m *scaling) unchanged(ctx context.Context, r *scale) (err error) {
	threads := func(n *int64) error {
		status, err := fields(m.Agent(), "status")
		*n = status["Threads"]
		return err
	}
	poll := func() error { return m.Control().Sync(ctx) }
	if err := errors.Join(poll(), threads(&r.Threads)); err != nil {
		return err
	}
	asked, before := m.WFM.Requests().Count(""), m.counter.count()
	for range m.method.Polls {
		if err := poll(); err != nil {
			return err
		}
	}
	r.Polls = m.WFM.Requests().Count("") - asked
	r.PerPoll = m.counter.count().since(before)
	if r.Polls != m.method.Polls || r.PerPoll.Connections != 0 {
		return fmt.Errorf("%d unchanged polls made %d requests and %d connections", m.method.Polls, r.Polls, r.PerPoll.Connections)
	}
	r.PerPoll = r.PerPoll.each(r.Polls)
	before = m.counter.count()
	for range anew {
		address := m.WFM.Address()
		if err := m.WFM.Close(); err != nil {
			return err
		}
		listener, err := m.counter.listen(address)
		if err != nil {
			return err
		}
		if err := errors.Join(m.WFM.Serve(listener), poll()); err != nil {
			return err
		}
	}
	r.PerFresh = m.counter.count().since(before).each(anew)
	r.Hourly = hourly()
	return threads(&r.ThreadsTo)
}

// hourly is how many polls a device makes in an hour, after its first, as the
// agent decides.
func hourly() float64 {
	const devices = 100
	polls := 0
	for device := range devices {
		next := paced(device)
		now := next(time.Unix(0, 0), false)
		for end := now.Add(time.Hour); ; polls++ {
			if now = next(now, false); !now.Before(end) {
				break
			}
		}
	}
	return float64(polls) / devices
}

// document makes a document that no compression makes smaller by much.
func (m *scaling) document(i int) margo.DeploymentRef {
	id := fmt.Sprintf("ad9b614e-8912-45f4-a523-%012d", i)
	noise := make([]byte, largeDocument*3/4)
	for j := range noise {
		noise[j] = byte(m.noise.Uint32())
	}
	body := fmt.Appendf(nil, `id: %s
metadata: {name: chart-%d, namespace: bench, deviceId: %s}
spec:
  applicationId: chart
  deploymentProfile:
    type: helm
    components:
      - name: main
        properties: {repository: "oci://registry.example/chart", revision: 1.0.0}
  parameters:
    a: {value: "%s", targets: [{pointer: X, components: [main]}]}
`, id, i, plant.Device, base64.StdEncoding.EncodeToString(noise))
	d := digest.FromBytes(body)
	m.raw.Documents[d] = body
	return margo.DeploymentRef{ID: id, Digest: d, SizeBytes: uint64(len(body)), URL: "/api/v1/deployments/" + id + "/" + d.String()}
}

// fill makes all documents, and the bundle of them.
func (m *scaling) fill() (int64, error) {
	m.raw = wfmsim.Raw{Documents: map[digest.Digest][]byte{}, Bundles: map[digest.Digest][]byte{}}
	var bundle bytes.Buffer
	z, err := gzip.NewWriterLevel(&bundle, gzip.NoCompression)
	if err != nil {
		return 0, err
	}
	w := tar.NewWriter(z)
	for i := range manyDeployments {
		ref := m.document(i)
		m.manifest.Deployments = append(m.manifest.Deployments, ref)
		body := m.raw.Documents[ref.Digest]
		if err := w.WriteHeader(&tar.Header{Name: ref.ID + ".yaml", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(body))}); err != nil {
			return 0, err
		}
		if _, err := w.Write(body); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		return 0, err
	}
	d := digest.FromBytes(bundle.Bytes())
	m.raw.Bundles[d] = bundle.Bytes()
	m.manifest.Bundle = &margo.Bundle{
		MediaType: margo.BundleMediaType, Digest: d, SizeBytes: uint64(bundle.Len()), URL: "/api/v1/bundles/" + d.String(),
	}
	return int64(bundle.Len()), nil
}

// publish makes the documents that there are the desired state, without what
// nobody can ask for any more.
func (m *scaling) publish() (err error) {
	m.manifest.Version = max(m.manifest.Version, m.WFM.Version(plant.Client)) + 1
	m.raw.Manifest, err = json.Marshal(m.manifest)
	m.WFM.SetRaw(plant.Client, m.raw)
	return err
}

// change gives one deployment another document. The manifest still names the
// bundle, which has not changed with it: who asks for the bundle now gets what
// it does not want.
func (m *scaling) change() error {
	i := m.noise.IntN(manyDeployments)
	delete(m.raw.Documents, m.manifest.Deployments[i].Digest)
	m.manifest.Deployments[i] = m.document(i)
	return m.publish()
}

// doing measures what the agent does while do does something, and what it wrote
// when end says so.
func (m *scaling) doing(ctx context.Context, do func() error, end func(context.Context) (written, error)) (deed, error) {
	d := deed{Requests: map[string]int{}}
	written, err := m.flushed()
	if err != nil {
		return d, err
	}
	cpu, err := cpuOf(m.Agent())
	if err != nil {
		return d, err
	}
	asked, traffic := m.WFM.Requests().Count(""), m.counter.count()
	counted := map[string]int{}
	for _, endpoint := range endpoints {
		counted[endpoint] = m.WFM.Requests().Count(endpoint)
	}
	begun := time.Now()
	if err := do(); err != nil {
		return d, err
	}
	d.Took = time.Since(begun)
	d.Traffic = m.counter.count().since(traffic)
	spent, err := cpuOf(m.Agent())
	if err != nil {
		return d, err
	}
	d.CPU = spent - cpu
	sum := 0
	for _, endpoint := range endpoints {
		d.Requests[endpoint] = m.WFM.Requests().Count(endpoint) - counted[endpoint]
		sum += d.Requests[endpoint]
	}
	if all := m.WFM.Requests().Count("") - asked; all != sum {
		return d, fmt.Errorf("%d requests went elsewhere", all-sum)
	}
	after, err := end(ctx)
	d.Written = after.since(written)
	return d, err
}

var endpoints = []string{wfmsim.EndpointManifest, wfmsim.EndpointDocument, wfmsim.EndpointBundle, wfmsim.EndpointStatus}

// accepted polls. Only afterwards is the agent asked what became of it, since
// its answer takes memory and time as well.
func (m *scaling) accepted(ctx context.Context) error { return m.Control().Sync(ctx) }

// heard waits until the WFM has had n more reports than before.
func (m *scaling) heard(ctx context.Context, before, n int) error {
	return plant.Eventually(ctx, func() error {
		if got := m.WFM.Requests().Count(wfmsim.EndpointStatus) - before; got < n {
			return fmt.Errorf("the WFM had %d reports of %d", got, n)
		}
		return nil
	})
}

// settled makes sure that everything that was published was accepted, and that
// the WFM knows of the failure of all of it.
func (m *scaling) settled(ctx context.Context) error {
	return plant.Eventually(ctx, func() error {
		status, err := m.Control().Status(ctx)
		if err != nil {
			return err
		}
		failed := 0
		for _, d := range status.Deployments {
			if d.State == string(margo.Failed) {
				failed++
			}
		}
		if status.Manifest == nil || status.Manifest.Version != m.manifest.Version || failed != manyDeployments || status.Outbox > 0 {
			return fmt.Errorf("%d of %d deployments have failed, %d reports are not delivered; %s", failed, manyDeployments, status.Outbox, status.WFM.LastError)
		}
		return nil
	})
}

// first takes all deployments as one bundle.
func (m *scaling) first(ctx context.Context) (f first, err error) {
	if err := pause(ctx, m.Warmup); err != nil {
		return f, err
	}
	idle, err := memoryOf(m.Agent())
	if err != nil {
		return f, err
	}
	f.Idle = idle.Anonymous
	if f.IdleHeap, _, err = m.heap(0); err != nil {
		return f, err
	}
	logged, err := os.Stat(m.LogFile())
	if err != nil {
		return f, err
	}
	before, err := m.flushed()
	if err != nil {
		return f, err
	}
	if err := m.publish(); err != nil {
		return f, err
	}
	begun, reports := time.Now(), m.WFM.Requests().Count(wfmsim.EndpointStatus)
	peak := watch(m.Agent())
	f.deed, err = m.doing(ctx, func() error { return m.accepted(ctx) }, func(context.Context) (written, error) { return m.flushed() })
	f.Streaming = peak() - f.Idle
	if err != nil {
		return f, err
	}
	peak = watch(m.Agent())
	err = m.heard(ctx, reports, 2*manyDeployments) // pending and failed
	f.Settling = peak() - f.Idle
	if err != nil {
		return f, err
	}
	f.Settled = time.Since(begun)
	f.Reports = m.WFM.Requests().Count(wfmsim.EndpointStatus) - reports
	after, err := m.still(ctx)
	if err != nil {
		return f, err
	}
	f.WrittenAll = after.since(before)
	if _, f.PeakHeap, err = m.heap(logged.Size()); err != nil {
		return f, err
	}
	return f, m.settled(ctx)
}

// changes publishes changes of one deployment, while the WFM hears of them and
// while it does not.
func (m *scaling) changes(ctx context.Context, r *scale) (err error) {
	var all []deed
	for range m.Rounds {
		if err := m.change(); err != nil {
			return err
		}
		reports := m.WFM.Requests().Count(wfmsim.EndpointStatus)
		d, err := m.doing(ctx, func() error {
			return errors.Join(m.accepted(ctx), m.heard(ctx, reports, 2))
		}, m.still)
		if err != nil {
			return err
		}
		if d.Requests[wfmsim.EndpointDocument] != 1 || d.Requests[wfmsim.EndpointBundle] != 0 {
			return fmt.Errorf("a change of one document was fetched by %v", d.Requests)
		}
		all = append(all, d)
	}
	r.Change = mean(all)
	if err := m.settled(ctx); err != nil {
		return err
	}

	// The same, and the reports of it later: what each writes.
	all = nil
	status := fault.Fault{Endpoint: wfmsim.EndpointStatus, Kind: fault.Cut}
	if _, err := m.WFM.Faults().Inject(status); err != nil {
		return err
	}
	for range m.Rounds {
		if err := m.change(); err != nil {
			return err
		}
		d, err := m.doing(ctx, func() error { return m.accepted(ctx) }, m.still)
		if err != nil {
			return err
		}
		all = append(all, d)
	}
	r.Kept = mean(all)
	m.WFM.Faults().Clear(wfmsim.EndpointStatus)
	r.Told, err = m.doing(ctx, func() error {
		return errors.Join(m.accepted(ctx), m.settled(ctx))
	}, m.still)
	if err != nil {
		return err
	}
	r.Untold = max(1, r.Told.Requests[wfmsim.EndpointStatus])
	r.Told.Written = r.Told.Written.each(r.Untold)
	return nil
}

// mean is the mean of deeds, and the median of the time they took.
func mean(all []deed) deed {
	sum := deed{Requests: map[string]int{}}
	var took []time.Duration
	for _, d := range all {
		took = append(took, d.Took)
		sum.CPU += d.CPU / time.Duration(len(all))
		sum.Traffic = sum.Traffic.plus(d.Traffic)
		sum.Written = sum.Written.plus(d.Written)
		for endpoint, n := range d.Requests {
			sum.Requests[endpoint] += n
		}
	}
	sum.Took = median(took)
	sum.Traffic, sum.Written = sum.Traffic.each(len(all)), sum.Written.each(len(all))
	for endpoint, n := range sum.Requests {
		sum.Requests[endpoint] = (n + len(all)/2) / len(all)
	}
	return sum
}

// watch samples the anonymous memory of a process until it is asked for the
// most that it was.
func watch(pid int) (most func() int64) {
	stop, high := make(chan struct{}), make(chan int64)
	go func() {
		var peak int64
		for {
			// It may have ended; whoever looks at it next finds out.
			if status, err := fields(pid, "status"); err == nil {
				peak = max(peak, status["RssAnon"]<<10)
			}
			select {
			case <-stop:
				high <- peak
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	return func() int64 {
		close(stop)
		return <-high
	}
}

// A collection as the runtime traces it: the heap at its start, at its end, and
// what of it is in use, in MiB.
var collection = regexp.MustCompile(`(?m)^gc \d+ @.* (\d+)->(\d+)->(\d+) MB,.*\n`)

// heap is what was in use after the last collection that the agent logged after
// an offset of its log, and the most that there was at any.
func (m *scaling) heap(from int64) (inUse, most int64, err error) {
	text, err := os.ReadFile(m.LogFile())
	if err != nil {
		return 0, 0, err
	}
	found := collection.FindAllSubmatch(text[from:], -1)
	for _, f := range found {
		for i, n := range f[1:] {
			size, err := strconv.ParseInt(string(n), 10, 64)
			if err != nil {
				return 0, 0, err
			}
			most = max(most, size<<20)
			if i == 2 {
				inUse = size << 20
			}
		}
	}
	return inUse, most, nil
}

func (p *printer) scale(r *scale) {
	p.heading("On the wire, mutual TLS 1.3: bytes of TCP, and with the headers of IPv4 and TCP")
	p.line("  %-50s %10s %7s %7s %8s %8s", "", "handshakes", "up", "down", "packets", "in all")
	row := func(what string, t traffic) {
		p.line("  %-50s %10d %7d %7d %8d %8d", what, t.Connections, t.Up, t.Down, t.Packets, t.bytes())
	}
	row(fmt.Sprintf("unchanged poll, mean of %d on one connection", r.Polls), r.PerPoll)
	row(fmt.Sprintf("unchanged poll on a new connection, mean of %d", anew), r.PerFresh)
	hour := traffic{}
	for range int(r.Hourly+0.5) - 1 {
		hour = hour.plus(r.PerPoll)
	}
	hour = hour.plus(r.PerFresh)
	row(fmt.Sprintf("an hour at rest: %.0f requests, computed", r.Hourly), hour)
	p.line("  A connection is used for an hour at most (ID-12), then there is a handshake. The hour is that of an interval of")
	p.line("  a minute, which the agent shortens by up to a tenth; TCP's probes of idle connections come on top.")
	p.line("  threads of the agent before and after: %d, %d", r.Threads, r.ThreadsTo)
	if b := r.Benchmark; b != nil {
		p.line("  in a process of its own: %d allocations, %d bytes, %s for each unchanged poll; %g goroutines more after %d",
			b.Allocations, b.Bytes, short(b.Took), b.Goroutines, b.Polls)
	}

	f := r.First
	p.heading("%d deployments in one bundle of %.1f MB; documents of %d KiB of a type that this device does not run",
		manyDeployments, float64(r.Bundle)/1e6, largeDocument>>10)
	p.line("  anonymous memory of the agent, MiB: %.1f idle; at most %+.1f while it comes in and is accepted, the goal is %+.1f;",
		mib(f.Idle), mib(f.Streaming), mib(memoryGoal))
	p.line("  at most %+.1f while all %d are worked on and reported, which took %s", mib(f.Settling), manyDeployments, ms(f.Settled))
	p.line("  heap, MiB: %.0f in use while idle, %.0f at most at any collection", mib(f.IdleHeap), mib(f.PeakHeap))
	p.deed("the bundle is accepted", f.deed)
	p.deed(fmt.Sprintf("one of %d changes, until it is reported", manyDeployments), r.Change)
	p.line("  written, bytes: %41s %9s %9s", "agent", "device", "reports")
	written := func(what string, w written, reports int) {
		p.line("    %-42s %12d %9d %9d", what, w.Agent, w.Device, reports)
	}
	written("the bundle, until all is reported", f.WrittenAll, f.Reports)
	written("a change of one, until it is reported", r.Change.Written, r.Change.Requests[wfmsim.EndpointStatus])
	written("a change of one that nobody hears of", r.Kept.Written, 0)
	written("each report of those, when they are heard", r.Told.Written, 1)
}

func (p *printer) deed(what string, d deed) {
	p.line("  %-44s %s, %s of processor; %d manifest, %d documents, %d bundles, %d reports; %d bytes up, %d down", what+":",
		ms(d.Took), ms(d.CPU), d.Requests[wfmsim.EndpointManifest], d.Requests[wfmsim.EndpointDocument],
		d.Requests[wfmsim.EndpointBundle], d.Requests[wfmsim.EndpointStatus], d.Traffic.Up, d.Traffic.Down)
}
