package e2e

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
	"github.com/margolite/margolite/test/wfmsim/record"
)

// asksForSilence is an answer that names a time before which nobody is to call,
// given once.
func asksForSilence(endpoint string, status int, retryAfter string) fault.Fault {
	return fault.Fault{Endpoint: endpoint, Kind: fault.Answer, Status: status, RetryAfter: retryAfter, Times: 1}
}

// What the WFM asks for with Retry-After is kept by everything that calls it:
// polls, reports, a person who asks for a poll, and an agent that was killed and
// started meanwhile.
func TestERR04NobodyCallsBeforeRetryAfter(t *testing.T) {
	long(t, "the rest of the program")
	r := newRig(t, "embedded")
	r.running()
	r.quiet()

	// obeys waits for the answer that asks for silence, and for whatever is asked
	// next, which is not to come before its end.
	obeys := func(t *testing.T, n, status int, endpoint string, until func(record.Request) time.Time, meanwhile func()) {
		t.Helper()
		first := r.nextRequest(n, status, endpoint)
		asked := int(first.Number)
		for tries := 0; len(r.since(asked)) == 0; tries++ {
			err := r.sync()
			if err != nil && !strings.Contains(err.Error(), "silence") {
				t.Errorf("a poll ended with %v", err)
			}
			if tries == 0 {
				if s := r.status().WFM; s.Waiting != "silence" || s.SilentUntil == nil {
					t.Errorf("status says %+v, want silence", s)
				}
				meanwhile()
			}
			time.Sleep(20 * time.Millisecond) // and ask again: nothing is to happen
		}
		if next, end := r.since(asked)[0], until(first); next.Time.Before(end) {
			t.Errorf("%s was asked for at %s, %s too early", next.Path, next.Time, end.Sub(next.Time))
		}
	}
	nothing := func() {}
	seconds := func(n time.Duration) func(record.Request) time.Time {
		return func(q record.Request) time.Time { return q.Time.Add(n * time.Second) }
	}

	t.Run("ERR-04 503 to a poll, seconds, over a restart", func(t *testing.T) {
		r.t = t
		n := r.asked()
		r.inject(asksForSilence(wfmsim.EndpointManifest, 503, "4"))
		obeys(t, n, 503, wfmsim.EndpointManifest, seconds(4), func() {
			r.Kill()
			r.running()
		})
	})
	t.Run("ERR-04 503 to a report, a date", func(t *testing.T) {
		r.t = t
		end := time.Now().Add(4 * time.Second).Truncate(time.Second)
		n := r.asked()
		r.inject(asksForSilence(wfmsim.EndpointStatus, 503, end.UTC().Format(http.TimeFormat)))
		done := r.publishChart(1, 1)
		obeys(t, n, 503, wfmsim.EndpointStatus, func(record.Request) time.Time { return end }, nothing)
		r.refusesChart(done)
	})
	t.Run("ERR-04 429 to a document", func(t *testing.T) {
		r.t = t
		n := r.asked()
		r.inject(asksForSilence(wfmsim.EndpointDocument, 429, "2"), asksForSilence(wfmsim.EndpointBundle, 429, "2"))
		done := r.publishChart(1, 2)
		q := r.nextRequest(n, 429)
		obeys(t, n, 429, q.Endpoint, seconds(2), nothing)
		r.WFM.Faults().Clear("")
		r.refusesChart(done)
	})
	r.t = t
}

// A WFM that fails is asked less and less often, not before the time that its
// problem names; one that says nothing at all may be asked at any time by a
// person.
func TestERR05ERR06PollsBackOff(t *testing.T) {
	long(t, "the rest of the program")
	r := newRig(t, "embedded")
	r.running()
	r.quiet()
	n := r.asked()
	// With problem details: retryable, exponential, after a second.
	r.inject(fault.Fault{Endpoint: wfmsim.EndpointManifest, Kind: fault.Answer, Status: 500, Times: 2})
	var failed []record.Request
	r.eventually("two polls fail", func() error {
		_ = r.sync() // it is refused for most of the time
		failed = slices.DeleteFunc(r.since(n, wfmsim.EndpointManifest), func(q record.Request) bool { return q.Status != 500 })
		if len(failed) < 2 {
			return &unlike{"one", "two"}
		}
		return nil
	})
	if gap := failed[1].Time.Sub(failed[0].Time); gap < time.Second {
		t.Errorf("the WFM was asked again after %s", gap)
	}
	r.synced()
	r.inject(fault.Fault{Endpoint: wfmsim.EndpointManifest, Kind: fault.HTML, Status: 502})
	for range 6 {
		if err := r.sync(); err == nil || !strings.Contains(err.Error(), "502") {
			t.Errorf("a poll that was answered 502 ended with %v", err)
		}
	}
	if s := r.status().WFM; s.Waiting != "backoff" || !s.Reachable || s.NextPoll == nil {
		t.Errorf("after failures status says %+v, want a back-off", s)
	}
	r.WFM.Faults().Clear("")
	r.refusesChart(r.publishedAndSynced(1, 1))
}

// Whether a WFM does not know the device any more or has retired it: what runs
// keeps running, over restarts, too, and goes on when it is taken back.
func TestDS21DevicesThatAreNotWelcomeKeepTheirWorkloads(t *testing.T) {
	long(t, "the rest of the protocol")
	r := newRig(t, "embedded")
	r.running()
	r.install(r.Deployment(demoID, nil))
	r.quiet()
	before := r.services(demoID)
	answers := func(status int) func() {
		return func() { r.inject(fault.Fault{Kind: fault.Answer, Status: status}) }
	}
	clear := func() { r.WFM.Faults().Clear("") }
	for _, test := range []struct {
		name        string
		begin, end  func()
		status      int
		waits, says string
	}{
		{"retired", func() { r.WFM.Retire(plant.Client) }, func() { r.WFM.Reinstate(plant.Client) }, 403, "retired", "retired"},
		{"not authorized", answers(403), clear, 403, "refused", "403"},
		{"401", answers(401), clear, 401, "refused", "401"},
		{"404", answers(404), clear, 404, "", "404"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r.t = t
			test.begin()
			n := r.asked()
			if err := r.sync(); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("a poll ended with %v, want %s", err, test.says)
			}
			if s := r.status().WFM; test.waits != "" && s.Waiting != test.waits || !s.Reachable {
				t.Errorf("status says %+v, want to wait for %q", s, test.waits)
			}
			if q := r.nextRequest(n, test.status); q.Client != plant.Client {
				t.Errorf("the WFM was asked by %q", q.Client)
			}
			r.untouched(demoID, before)
			r.Kill()
			r.running()
			r.settled(demoID)
			if err := r.sync(); err == nil {
				t.Error("after a restart the device is welcome")
			}
			r.untouched(demoID, before)
			test.end()
			r.refusesChart(r.publishedAndSynced(1, test.status+len(test.name)))
			r.untouched(demoID, before)
		})
	}
	r.t = t
}

// publishedAndSynced publishes a chart and polls: the agent may be waiting for
// long.
func (r *rig) publishedAndSynced(n, revision int) wfmsim.Published {
	r.t.Helper()
	done := r.publishChart(n, revision)
	check(r.t, r.sync())
	return done
}

// aroundNow and notNow are windows for the configuration.
func aroundNow() []string { return []string{windowFrom(-2*time.Hour, 4*time.Hour)} }
func notNow() []string    { return []string{windowFrom(6*time.Hour, 2*time.Hour)} }

func windowFrom(start, length time.Duration) string {
	const hours = "15:04"
	from := time.Now().UTC().Add(start)
	return from.Format(hours) + "-" + from.Add(length).Format(hours) + " UTC"
}

// watched is for how long a WFM is watched that is not to be called: a poll
// would come meanwhile.
const watched = 1500 * time.Millisecond

// In downtime nothing is sent, by an agent that was told of it or started in it,
// and what does not work is no error. Afterwards everything goes on.
func TestPOL01POL02NothingIsSentInDowntime(t *testing.T) {
	long(t, "the rest of policy")
	r := newRig(t, "embedded")
	r.running()
	r.refusesChart(r.publishChart(1, 1))
	r.quiet()

	down := usual
	down.Downtime = aroundNow()
	check(t, r.Reconfigure(down))
	r.waitsFor("downtime")
	n, logged := r.asked(), r.logLength()
	done := r.publishChart(1, 2)
	check(t, r.WFM.Close())
	if err := r.sync(); err == nil || !strings.Contains(err.Error(), "downtime") {
		t.Errorf("a poll in downtime ended with %v", err)
	}
	time.Sleep(watched)
	check(t, r.WFM.Start(""))
	if s := r.status().WFM; s.LastError != "" || s.DowntimeUntil == nil {
		t.Errorf("in downtime status says %+v", s)
	}
	if lines := r.logged(logged, "level=WARN"); len(lines) > 0 {
		t.Errorf("in downtime the agent complains: %q", lines)
	}

	r.stop()
	r.running()
	r.waitsFor("downtime")
	time.Sleep(watched)
	if all := r.since(n); len(all) > 0 {
		t.Errorf("in downtime came %+v", all)
	}
	check(t, r.Reconfigure(usual))
	r.refusesChart(done)
}

// waitsFor waits until the next poll waits for something.
func (r *rig) waitsFor(reason string) {
	r.t.Helper()
	r.eventually("the next poll waits for "+reason, func() error {
		if s := r.status().WFM; s.Waiting != reason {
			return &unlike{s.Waiting, reason}
		}
		return nil
	})
}

// unlike is the error about a value that is not the one wanted.
type unlike struct{ is, want string }

func (u *unlike) Error() string { return "it is " + u.is + ", want " + u.want }

// Out of the windows for polls the desired state is not asked for, unless
// somebody asks for that; what the device has to tell is told.
func TestPOL03PollsInWindowsOnly(t *testing.T) {
	long(t, "the rest of policy")
	r := newRig(t, "embedded")
	r.running()
	r.quiet()
	closed := usual
	closed.Windows, closed.Labels = notNow(), map[string]string{"plant.example/line": "nine"}
	check(t, r.Reconfigure(closed))
	r.waitsFor("window")
	n := r.asked()
	done := r.publishChart(1, 1)
	r.eventually("the new label is reported", func() error { return r.reportsLabel("plant.example/line", "nine") })
	time.Sleep(watched)
	if all := r.since(n, wfmsim.EndpointManifest); len(all) > 0 {
		t.Errorf("out of the windows came %+v", all)
	}
	check(t, r.sync())
	r.refusesChart(done)
	if all := r.since(n, wfmsim.EndpointManifest); len(all) != 1 {
		t.Errorf("out of the windows somebody asked for one poll, and %+v came", all)
	}
	open := usual
	open.Windows = aroundNow()
	done = r.publishChart(1, 2)
	check(t, r.Reconfigure(open))
	r.refusesChart(done)
}

// reportsLabel says whether the WFM knows a label of the device.
func (r *rig) reportsLabel(name, value string) error {
	devices := r.WFM.Devices(plant.Client)
	if len(devices) != 1 {
		return &unlike{"known for other devices", "known for one"}
	}
	var c struct {
		Labels map[string]any `json:"labels"`
	}
	if err := json.Unmarshal(devices[0].Body, &c); err != nil {
		return err
	}
	if got, _ := c.Labels[name].(string); got != value {
		return &unlike{got, value}
	}
	return nil
}
