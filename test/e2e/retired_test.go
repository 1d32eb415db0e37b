package e2e

import (
	"strings"
	"testing"

	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/fault"
)

// Whether a WFM does not know the device any more or has retired it: what runs
// keeps running, over restarts, too, and goes on when it is taken back.
func TestDS21DevicesThatAreNotWelcomeKeepTheirWorkloads(t *testing.T) {
	long(t, "a retired device")
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
		{"401", answers(401), clear, 401, "refused", "401"},
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
