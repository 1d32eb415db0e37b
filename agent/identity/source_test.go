package identity_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/pki"
)

// keeper is a store that outlives a source.
type keeper struct {
	mu     sync.Mutex
	record []byte
	writes int
	broken error
}

func (k *keeper) Keep(record []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.broken != nil {
		return k.broken
	}
	k.record, k.writes = bytes.Clone(record), k.writes+1
	return nil
}

func (k *keeper) Kept() ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return bytes.Clone(k.record), k.broken
}

func (k *keeper) set(broken error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.broken = broken
}

func (k *keeper) written() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writes
}

// present is a clock that a test sets.
type present struct {
	mu sync.Mutex
	at time.Time
}

func (p *present) now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at
}

func (p *present) pass(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = p.at.Add(d)
}

// alarm is what a source waits for.
type alarm struct {
	d    time.Duration
	ring chan time.Time
}

// world is everything around a BundleSource.
type world struct {
	t       *testing.T
	mis     *misServer
	wfm     *pki.Authority // of the trust domain
	device  *identity.Identity
	files   identity.Options
	keeper  *keeper
	present *present
	silence time.Duration
	log     bytes.Buffer
	options identity.BundleOptions

	source *identity.BundleSource
	alarms chan alarm
	stop   func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	_, certificate, ca := web(t)
	w := &world{
		t: t, mis: serveMIS(t, certificate), wfm: authority(t), keeper: &keeper{}, present: &present{at: noon},
		alarms: make(chan alarm, 16),
	}
	w.files = options(device(t, w.wfm))
	w.files.TrustBundle = ""
	w.device = must(identity.Load(w.files))
	w.options = identity.BundleOptions{
		Service:  service(t, identity.ServiceOptions{Bundle: w.mis.URL + bundlePath, CA: ca}),
		Keeper:   w.keeper,
		Now:      w.present.now,
		Logger:   slog.New(slog.NewTextHandler(&w.log, nil)),
		Silence:  func() time.Duration { return w.silence },
		Random:   func() float64 { return 0 },
		Interval: 24 * time.Hour,
		After: func(d time.Duration) <-chan time.Time {
			a := alarm{d, make(chan time.Time, 1)}
			w.alarms <- a
			return a.ring
		},
	}
	w.publish(w.wfm.Bundle(), `"1"`)
	return w
}

// start runs a new source until the test ends or stop is called.
func (w *world) start() {
	w.source = identity.NewBundleSource(w.options)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.source.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	w.t.Cleanup(w.stop)
}

// fetched starts a source for the device, and returns when the first bundle is in force
// and the source waits a day for the next one.
func (w *world) fetched() alarm {
	w.t.Helper()
	w.start()
	w.source.Follow(w.device)
	w.pass(w.wait(0))
	return w.wait(day)
}

// wait returns what the source waits for next, which has to be that long.
func (w *world) wait(want time.Duration) alarm {
	w.t.Helper()
	select {
	case a := <-w.alarms:
		if a.d != want {
			w.t.Errorf("the source waits %s, want %s", a.d, want)
		}
		return a
	case <-time.After(time.Minute):
		w.t.Fatal("the source waits for nothing")
	}
	panic("unreachable")
}

// idle checks that the source does not wait for anything new.
func (w *world) idle() {
	w.t.Helper()
	select {
	case a := <-w.alarms:
		w.t.Errorf("the source waits %s, want it to do nothing", a.d)
	default:
	}
}

// pass lets the time of an alarm pass and rings it.
func (w *world) pass(a alarm) {
	w.present.pass(a.d)
	a.ring <- time.Time{}
}

func (w *world) publish(b *identity.TrustBundle, etag string) {
	w.mis.publish(bundlePath, must(pki.MarshalBundle(b)), etag)
}

func (w *world) fail(status int, header, body string) {
	w.mis.handle(bundlePath, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", margo.ProblemMediaType)
		if header != "" {
			rw.Header().Set("Retry-After", header)
		}
		rw.WriteHeader(status)
		rw.Write([]byte(body))
	})
}

// accepts reports whether the device speaks to a WFM of an authority.
func (w *world) accepts(a *pki.Authority) bool {
	w.t.Helper()
	result := call(w.t, w.device, &tls.Config{Certificates: []tls.Certificate{must(a.IssueWFM("one")).TLS()}})
	if result.err != nil {
		result.keptQuiet(w.t)
	}
	return result.err == nil
}

const day = 24 * time.Hour

func TestID28TheFirstBundleMakesTheDeviceReady(t *testing.T) {
	w := newWorld(t)
	w.fail(404, "", `{"type":"https://docs.margo.org/specification/problem-types#spiffe-bundle-not-found","title":"Bundle not found","status":404,"retryable":true,"retryAfterSeconds":120,"backoffStrategy":"exponential"}`)
	w.start()
	w.idle() // without an identity there is no trust domain
	w.source.Follow(w.device)
	w.pass(w.wait(0))
	retry := w.wait(2 * time.Minute)
	if w.accepts(w.wfm) {
		t.Error("a WFM was accepted without a bundle")
	}
	if status := w.source.Status(); status.Err == nil || status.TrustDomain != "" || !status.Next.Equal(noon.Add(2*time.Minute)) {
		t.Errorf("status %+v", status)
	}
	w.pass(retry)
	again := w.wait(4 * time.Minute)
	w.publish(w.wfm.Bundle(), "")
	w.pass(again)
	w.wait(day)
	if !w.accepts(w.wfm) {
		t.Error("the WFM is not accepted with the bundle")
	}
	status := w.source.Status()
	if at := noon.Add(6 * time.Minute); status.Err != nil || status.TrustDomain != domain || status.Anchors != 1 || status.Sequence != 1 ||
		!status.Accepted.Equal(at) || !status.Checked.Equal(at) || !status.Next.Equal(at.Add(day)) {
		t.Errorf("status %+v", status)
	}
	if trustDomain, bundle := w.source.Current(); trustDomain != domain || len(bundle.Anchors) != 1 {
		t.Errorf("current %s, %+v", trustDomain, bundle)
	}
}

// An offline restart: the last good bundle is in force before anything is asked.
func TestID24TheLastGoodBundleOutlivesARestart(t *testing.T) {
	w := newWorld(t)
	w.fetched()
	w.stop()
	w.mis.Close()
	w.present.pass(400 * day) // however old (ID-22)

	w.device = must(identity.Load(w.files))
	w.options.Random = func() float64 { return 0.5 }
	w.start()
	w.source.Follow(w.device)
	if !w.accepts(w.wfm) {
		t.Fatal("the WFM is not accepted after the restart")
	}
	if status := w.source.Status(); status.Anchors != 1 || !status.Accepted.Equal(noon) || !status.Checked.IsZero() {
		t.Errorf("status %+v", status)
	}
	// Not at once: the whole plant may have been switched on.
	w.pass(w.wait(30 * time.Second))
	w.pass(w.wait(30*time.Second - 7500*time.Millisecond)) // failed; spread over the second half
	w.wait(time.Minute - 15*time.Second)
	if !w.accepts(w.wfm) {
		t.Error("the WFM is not accepted after a refresh that failed")
	}
	if n := strings.Count(w.log.String(), "cannot refresh trust bundle"); n != 1 {
		t.Errorf("the same failure was logged %d times", n)
	}
}

func TestID24TheETagOutlivesARestart(t *testing.T) {
	w := newWorld(t)
	w.fetched()
	w.stop()
	w.mis.took()

	w.fetched()
	if requests := w.mis.took(); len(requests) != 1 || requests[0].Header.Get("If-None-Match") != `"1"` {
		t.Errorf("requests: %+v", requests)
	}
}

func TestID24ARecordThatIsBrokenIsFetchedAnew(t *testing.T) {
	for name, record := range map[string]string{
		"not a record":                 "\x00",
		"without a bundle":             `{"trustDomain":"factory.example"}`,
		"with a bundle without anchor": `{"trustDomain":"factory.example","bundle":"e30="}`,
		"of another trust domain":      otherRecord(t),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.keeper.record = []byte(record)
			w.fetched()
			if !w.accepts(w.wfm) || w.keeper.written() != 1 {
				t.Errorf("not in force, or written %d times", w.keeper.written())
			}
		})
	}
}

// otherRecord is a good record of another trust domain.
func otherRecord(t *testing.T) string {
	t.Helper()
	other := must(pki.NewAuthority("other.example", noon))
	return `{"trustDomain":"other.example","bundle":"` + base64.StdEncoding.EncodeToString(other.BundlePEM()) + `"}`
}

func TestID21ABundleIsReplacedAndConnectionsRenewed(t *testing.T) {
	w := newWorld(t)
	next := authority(t)
	accepted := 0
	w.options.Accepted = func() { accepted++ }
	w.start()
	w.source.Follow(w.device)
	w.pass(w.wait(0))
	w.pass(w.wait(day)) // the same again
	due := w.wait(day)
	if accepted != 1 {
		t.Errorf("%d bundles came into force, want 1", accepted)
	}
	generation := w.device.Generation()
	w.publish(next.Bundle(), `"2"`)
	w.pass(due)
	w.wait(day)
	if w.accepts(w.wfm) || !w.accepts(next) {
		t.Error("the anchors were not replaced")
	}
	if w.device.Generation() != generation+1 || w.keeper.written() != 2 || accepted != 2 {
		t.Errorf("generation %d, %d writes, %d accepted", w.device.Generation(), w.keeper.written(), accepted)
	}
}

func TestID22ABundleThatIsRefusedLeavesTheCurrentOne(t *testing.T) {
	w := newWorld(t)
	due, generation := w.fetched(), w.device.Generation()
	w.mis.publish(bundlePath, []byte(`{"keys":[]}`), "") // ID-19
	w.pass(due)
	due = w.wait(30 * time.Second)
	if !w.accepts(w.wfm) || w.device.Generation() != generation || w.keeper.written() != 1 {
		t.Error("the bundle before is not in force, or was written again")
	}
	if w.source.Status().Err == nil || w.source.Status().Anchors != 1 {
		t.Errorf("status %+v", w.source.Status())
	}
	w.publish(w.wfm.Bundle(), "")
	w.pass(due)
	w.wait(day)
	if w.source.Status().Err != nil {
		t.Errorf("status %+v", w.source.Status())
	}
}

// The answers carry caching headers for a year, which play no role.
func TestID23TheHintSetsTheSchedule(t *testing.T) {
	w := newWorld(t)
	hinted := w.wfm.Bundle()
	hinted.RefreshHint = time.Hour
	w.publish(hinted, `"1"`)
	w.start()
	w.source.Follow(w.device)
	w.pass(w.wait(0))
	for range 3 {
		w.pass(w.wait(time.Hour)) // each answered 304
	}
	w.wait(time.Hour)
	if requests := w.mis.took(); len(requests) != 4 {
		t.Errorf("%d requests, want 4", len(requests))
	}
	if w.keeper.written() != 1 || w.device.Generation() != 1 {
		t.Errorf("what is unchanged was written: %d writes, generation %d", w.keeper.written(), w.device.Generation())
	}
	if n := strings.Count(w.log.String(), "\n"); n != 1 {
		t.Errorf("%d lines of log, want 1:\n%s", n, w.log.String())
	}
}

func TestID23AFleetSpreadsToTheEarlierSide(t *testing.T) {
	w := newWorld(t)
	w.options.Random = func() float64 { return 0.5 }
	w.start()
	w.source.Follow(w.device)
	w.pass(w.wait(0))
	w.wait(day - day/20)
}

// going back is accepted, and said.
func TestID21ASequenceMayGoBack(t *testing.T) {
	w := newWorld(t)
	next := authority(t)
	later, earlier := w.wfm.Bundle(), next.Bundle()
	later.Sequence, earlier.Sequence = 12, 3
	w.publish(later, "")
	due := w.fetched()
	w.publish(earlier, "")
	w.pass(due)
	w.wait(day)
	if !w.accepts(next) || !strings.Contains(w.log.String(), "from=12 to=3") {
		t.Errorf("refused, or not said:\n%s", w.log.String())
	}
}

func TestERR04SilenceIsKept(t *testing.T) {
	w := newWorld(t)
	due := w.fetched()
	w.fail(503, "7200", "")
	w.pass(due)
	w.wait(2 * time.Hour)
	w.mis.took()
	w.source.Refresh() // no reason is good enough
	w.present.pass(time.Hour)
	w.source.Refresh()
	w.stop()
	w.idle()
	if requests := w.mis.took(); len(requests) != 0 {
		t.Errorf("%d requests in the time of silence", len(requests))
	}
}

func TestPOL01NoRequestIsMadeInDowntime(t *testing.T) {
	w := newWorld(t)
	w.silence = 3 * time.Hour
	w.start()
	w.source.Follow(w.device)
	w.pass(w.wait(0))
	end := w.wait(3 * time.Hour)
	if requests := w.mis.took(); len(requests) != 0 || w.source.Status().Err != nil {
		t.Errorf("%d requests in the downtime, %v", len(requests), w.source.Status().Err)
	}
	w.silence = 0
	w.pass(end)
	w.wait(day)
}

func TestRefreshIsEarlierThanTheSchedule(t *testing.T) {
	w := newWorld(t)
	w.fetched()
	w.present.pass(time.Minute)
	w.source.Refresh()
	soon := w.wait(4 * time.Minute) // five minutes after the last
	w.pass(soon)
	w.wait(day)
	w.present.pass(-365 * day) // the clock was set back
	w.source.Refresh()
	w.pass(w.wait(5 * time.Minute))
	w.wait(day)
	if requests := w.mis.took(); len(requests) != 3 {
		t.Errorf("%d requests, want 3", len(requests))
	}
}

func TestABundleThatCannotBeKeptIsInUseAndKeptLater(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.source.Follow(w.device)
	w.keeper.set(errors.New("no space left on device"))
	w.pass(w.wait(0))
	due := w.wait(day)
	if !w.accepts(w.wfm) {
		t.Error("the bundle is not in use")
	}
	w.keeper.set(nil)
	w.pass(due) // answered 304
	w.wait(day)
	if w.keeper.written() != 1 {
		t.Errorf("%d writes", w.keeper.written())
	}
}

// The certificate is replaced by one of another trust domain: its bundle is
// another one, too.
func TestID21TheBundleFollowsTheTrustDomain(t *testing.T) {
	w := newWorld(t)
	w.fetched()

	other := must(pki.NewAuthority("other.example", noon))
	must(pki.WriteFiles(filepath.Dir(w.files.Key), must(other.IssueClient("one", "gw-07")), other.Bundle()))
	w.device = must(identity.Load(w.files))
	w.publish(other.Bundle(), `"o"`)
	w.source.Follow(w.device)
	if w.accepts(w.wfm) || w.device.HasBundle() {
		t.Error("the bundle of the former trust domain is in force")
	}
	w.pass(w.wait(0)) // at once, though the last attempt was just now
	w.wait(day)
	if !w.accepts(other) {
		t.Error("the bundle of the new trust domain is not in force")
	}
	if domain, _ := w.source.Current(); domain != "other.example" {
		t.Errorf("the current bundle is of %q", domain)
	}
}
