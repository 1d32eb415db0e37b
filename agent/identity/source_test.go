package identity_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/margolite/margolite/agent/identity"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/agent/wfm"
	"github.com/margolite/margolite/test/expect"
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

// world is everything around a BundleSource.
type world struct {
	t       *testing.T
	wfm     *pki.Authority // of the trust domain
	device  *identity.Identity
	files   identity.Options
	keeper  *keeper
	log     bytes.Buffer
	options identity.BundleOptions

	source *identity.BundleSource
	stop   func()

	mu      sync.Mutex
	answer  func(known identity.Fetched) (identity.Fetched, error) // of the identity service
	asked   []identity.Fetched                                     // what was known with each request
	seen    int                                                    // requests that the test has accounted for
	silence time.Duration
}

// simulate runs a test in a time of its own.
func simulate(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, wfm: authority(t), keeper: &keeper{}}
		w.files = options(device(t, w.wfm))
		w.files.TrustBundle = ""
		w.device = expect.Value(identity.Load(w.files))(t)
		w.options = identity.BundleOptions{
			Fetch: w.fetch, Keeper: w.keeper, Interval: day, Random: func() float64 { return 0 },
			Now: time.Now, Logger: slog.New(slog.NewTextHandler(&w.log, nil)),
			Silence: func() time.Duration {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.silence
			},
		}
		w.publish(w.wfm.Bundle(), `"1"`)
		test(w)
	})
}

func (w *world) fetch(_ context.Context, _ string, known identity.Fetched) (identity.Fetched, error) {
	w.mu.Lock()
	w.asked = append(w.asked, known)
	answer := w.answer
	w.mu.Unlock()
	return answer(known)
}

func (w *world) answers(answer func(known identity.Fetched) (identity.Fetched, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = answer
}

func (w *world) publish(b *identity.TrustBundle, etag string) {
	data := expect.Value(pki.MarshalBundle(b))(w.t)
	w.answers(func(known identity.Fetched) (identity.Fetched, error) {
		if etag != "" && known.ETag == etag {
			return known, nil
		}
		return identity.Fetched{Data: data, URL: "https://mis.example/bundle.json", ETag: etag}, nil
	})
}

func (w *world) fail(err error) {
	w.answers(func(identity.Fetched) (identity.Fetched, error) { return identity.Fetched{}, err })
}

func (w *world) silent(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silence = d
}

// start runs a new source until the test ends or stop is called.
func (w *world) start() {
	w.source = identity.NewBundleSource(w.options)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.source.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		expect.Error(w.t, <-done, nil, "Run")
	})
	w.t.Cleanup(w.stop)
}

// fetched starts a source for the device, which fetches the first bundle at once.
func (w *world) fetched() {
	w.t.Helper()
	w.start()
	w.source.Follow(w.device)
	w.due(0)
}

// due lets so much time pass, at the end of which the next request comes, and not before.
func (w *world) due(after time.Duration) {
	w.t.Helper()
	if after > 0 {
		time.Sleep(after - time.Nanosecond)
		w.idle()
		time.Sleep(time.Nanosecond)
	}
	w.seen++
	w.idle()
}

// idle checks that there was no request that nobody waited for.
func (w *world) idle() {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	expect.Equal(w.t, len(w.asked), w.seen, "requests")
	w.seen = len(w.asked)
}

// accepts reports whether the device speaks to a WFM of an authority.
func (w *world) accepts(a *pki.Authority) bool {
	w.t.Helper()
	result := call(w.t, w.device, &tls.Config{Certificates: []tls.Certificate{expect.Value(a.IssueWFM("one"))(w.t).TLS()}})
	if result.err != nil {
		result.keptQuiet(w.t)
	}
	return result.err == nil
}

const day = 24 * time.Hour

var errUnreachable = errors.New("connection refused")

// refusal is an answer of the service with a Problem.
func refusal(status int, after time.Duration, problem string) error {
	return &wfm.Error{
		Status: status, RetryAfter: after, Problem: margo.ParseProblem(margo.ProblemMediaType, status, []byte(problem)),
	}
}

func TestID28TheFirstBundleMakesTheDeviceReady(t *testing.T) {
	simulate(t, func(w *world) {
		w.fail(refusal(404, 2*time.Minute, `{"type":"https://docs.margo.org/specification/problem-types#spiffe-bundle-not-found","retryable":true,"backoffStrategy":"exponential"}`))
		w.start()
		time.Sleep(day)
		w.idle() // without an identity there is no trust domain
		w.source.Follow(w.device)
		w.due(0)
		expect.Equal(t, w.accepts(w.wfm), false, "a WFM is accepted without a bundle")
		warns(t, w.device, identity.NoBundle)
		if status := w.source.Status(); status.Err == nil || status.TrustDomain != "" || !status.Next.Equal(time.Now().Add(2*time.Minute)) {
			t.Errorf("status %+v", status)
		}
		w.due(2 * time.Minute)
		w.publish(w.wfm.Bundle(), "")
		w.due(4 * time.Minute)
		expect.Equal(t, w.accepts(w.wfm), true, "the WFM is accepted with the bundle")
		status, at := w.source.Status(), time.Now()
		if status.Err != nil || status.TrustDomain != domain || status.Anchors != 1 || status.Sequence != 1 ||
			!status.Accepted.Equal(at) || !status.Checked.Equal(at) || !status.Next.Equal(at.Add(day)) {
			t.Errorf("status %+v", status)
		}
	})
}

// An offline restart: the last good bundle is in force before anything is asked.
func TestID24TheLastGoodBundleOutlivesARestart(t *testing.T) {
	simulate(t, func(w *world) {
		began := time.Now()
		w.fetched()
		w.stop()
		w.fail(errUnreachable)
		time.Sleep(400 * day) // however old (ID-22)

		w.device = expect.Value(identity.Load(w.files))(w.t)
		w.options.Random = func() float64 { return 0.5 }
		w.start()
		w.source.Follow(w.device)
		expect.Equal(t, w.accepts(w.wfm), true, "the WFM is accepted after the restart")
		if status := w.source.Status(); status.Anchors != 1 || !status.Accepted.Equal(began) || !status.Checked.IsZero() {
			t.Errorf("status %+v", status)
		}
		w.due(30 * time.Second) // not at once: the whole plant may have been switched on
		expect.Equal(t, w.asked[1].ETag, `"1"`, "known was %+v", w.asked[1])
		w.due(30*time.Second - 7500*time.Millisecond) // spread over the second half
		w.due(time.Minute - 15*time.Second)
		expect.Equal(t, w.accepts(w.wfm), true, "the WFM is accepted after a refresh that failed")
		expect.Equal(t, strings.Count(w.log.String(), "cannot refresh trust bundle"), 1, "times that the same failure was logged")
	})
}

func TestID24ARecordThatIsBrokenIsFetchedAnew(t *testing.T) {
	other := expect.Value(pki.NewAuthority("other.example", noon))(t)
	for name, record := range map[string]string{
		"not a record":                 "\x00",
		"without a bundle":             `{"trustDomain":"factory.example"}`,
		"with a bundle without anchor": `{"trustDomain":"factory.example","bundle":"e30="}`,
		"of another trust domain":      `{"trustDomain":"other.example","bundle":"` + base64.StdEncoding.EncodeToString(other.BundlePEM()) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(w *world) {
				w.keeper.record = []byte(record)
				w.fetched()
				expect.True(t, w.accepts(w.wfm) && w.keeper.writes == 1, "not in force, or written %d times", w.keeper.writes)
			})
		})
	}
}

func TestID21ABundleIsReplacedAndConnectionsRenewed(t *testing.T) {
	simulate(t, func(w *world) {
		next := authority(t)
		accepted := 0
		w.options.Accepted = func() { accepted++ }
		w.fetched()
		w.due(day) // the same again
		expect.Equal(t, accepted, 1, "bundles came into force")
		generation := w.device.Generation()
		w.publish(&identity.TrustBundle{Anchors: []*x509.Certificate{w.wfm.Root, next.Root}}, `"2"`)
		w.due(day)
		expect.True(t, w.accepts(w.wfm) && w.accepts(next), "not both anchors are in force")
		w.publish(next.Bundle(), `"3"`)
		w.due(day)
		expect.True(t, !w.accepts(w.wfm) && w.accepts(next), "the anchors were not replaced")
		if w.device.Generation() != generation+2 || w.keeper.writes != 3 || accepted != 3 {
			t.Errorf("generation %d, %d writes, %d accepted", w.device.Generation(), w.keeper.writes, accepted)
		}
	})
}

func TestID22ABundleThatIsRefusedLeavesTheCurrentOne(t *testing.T) {
	simulate(t, func(w *world) {
		w.fetched()
		generation := w.device.Generation()
		w.answers(func(identity.Fetched) (identity.Fetched, error) { // ID-19
			return identity.Fetched{Data: []byte(`{"keys":[]}`)}, nil
		})
		w.due(day)
		if !w.accepts(w.wfm) || w.device.Generation() != generation || w.keeper.writes != 1 {
			t.Error("the bundle before is not in force, or was written again")
		}
		if w.source.Status().Err == nil || w.source.Status().Anchors != 1 {
			t.Errorf("status %+v", w.source.Status())
		}
		w.publish(w.wfm.Bundle(), "")
		w.due(30 * time.Second)
		expect.OK(t, w.source.Status().Err)
	})
}

func TestID23TheHintSetsTheSchedule(t *testing.T) {
	simulate(t, func(w *world) {
		hinted := w.wfm.Bundle()
		hinted.RefreshHint = time.Hour
		w.publish(hinted, `"1"`)
		w.fetched()
		for range 3 {
			w.due(time.Hour) // unchanged each time
		}
		expect.Equal(t, w.keeper.writes, 1, "writes of what is unchanged")
		expect.Equal(t, w.device.Generation(), 1, "generation")
		expect.Equal(t, strings.Count(w.log.String(), "\n"), 1, "lines of log in %s", w.log.String())
	})
}

func TestID23AFleetSpreadsToTheEarlierSide(t *testing.T) {
	simulate(t, func(w *world) {
		w.options.Random = func() float64 { return 0.5 }
		w.fetched()
		w.due(day - day/20)
	})
}

// going back is accepted, and said.
func TestID21ASequenceMayGoBack(t *testing.T) {
	simulate(t, func(w *world) {
		next := authority(t)
		later, earlier := w.wfm.Bundle(), next.Bundle()
		later.Sequence, earlier.Sequence = 12, 3
		w.publish(later, "")
		w.fetched()
		w.publish(earlier, "")
		w.due(day)
		if !w.accepts(next) || !strings.Contains(w.log.String(), "from=12 to=3") {
			t.Errorf("refused, or not said:\n%s", w.log.String())
		}
	})
}

func TestERR04SilenceIsKept(t *testing.T) {
	simulate(t, func(w *world) {
		w.fetched()
		w.fail(refusal(503, 2*time.Hour, ""))
		w.due(day)
		w.source.Refresh() // no reason is good enough
		time.Sleep(time.Hour)
		w.source.Refresh()
		w.due(time.Hour)
	})
}

func TestPOL01NoRequestIsMadeInDowntime(t *testing.T) {
	simulate(t, func(w *world) {
		w.silent(3 * time.Hour)
		w.start()
		w.source.Follow(w.device)
		w.idle()
		time.Sleep(time.Hour)
		w.source.Refresh()
		w.idle()
		expect.Error(t, w.source.Status().Err, nil, "in the downtime")
		w.silent(0)
		w.due(2 * time.Hour)
	})
}

func TestRefreshIsEarlierThanTheSchedule(t *testing.T) {
	simulate(t, func(w *world) {
		w.fetched()
		time.Sleep(time.Minute)
		w.source.Refresh()
		w.due(4 * time.Minute) // five minutes after the last
		w.due(day)
	})
}

func TestABundleThatCannotBeKeptIsInUseAndKeptLater(t *testing.T) {
	simulate(t, func(w *world) {
		w.keeper.set(errors.New("no space left on device"))
		w.fetched()
		expect.Equal(t, w.accepts(w.wfm), true, "the bundle is in use")
		w.keeper.set(nil)
		w.due(day) // unchanged
		expect.Equal(t, w.keeper.writes, 1, "writes")
	})
}

// The certificate is replaced by one of another trust domain: its bundle is
// another one, too.
func TestID21TheBundleFollowsTheTrustDomain(t *testing.T) {
	simulate(t, func(w *world) {
		w.fetched()
		other := expect.Value(pki.NewAuthority("other.example", noon))(w.t)
		expect.Value(pki.WriteFiles(filepath.Dir(w.files.Key), expect.Value(other.IssueClient("one", "gw-07"))(w.t), other.Bundle()))(w.t)
		w.device = expect.Value(identity.Load(w.files))(w.t)
		w.fail(errUnreachable)
		w.source.Follow(w.device)
		w.due(0) // at once, though the last attempt was just now
		expect.True(t, !w.accepts(w.wfm) && !w.device.HasBundle(), "the bundle of the former trust domain is in force")
		w.publish(other.Bundle(), `"o"`)
		w.due(30 * time.Second)
		expect.Equal(t, w.accepts(other), true, "the bundle of the new trust domain is in force")
		expect.Equal(t, w.source.Status().TrustDomain, "other.example", "trust domain of the current bundle")
	})
}

// The certificate is replaced while a bundle is fetched, which is for the new one.
func TestID21ABundleThatComesMeanwhileIsUsed(t *testing.T) {
	simulate(t, func(w *world) {
		w.fetched()
		next := authority(t)
		w.answers(func(identity.Fetched) (identity.Fetched, error) {
			w.device = expect.Value(identity.Load(w.files))(w.t)
			w.source.Follow(w.device)
			return identity.Fetched{Data: expect.Value(next.BundleJSON())(w.t)}, nil
		})
		w.due(day)
		expect.True(t, !w.accepts(w.wfm) && w.accepts(next), "the anchors were not replaced")
	})
}
