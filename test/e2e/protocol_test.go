package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/margolite/margolite/agent/control"
	"github.com/margolite/margolite/agent/margo"
	"github.com/margolite/margolite/test/plant"
	"github.com/margolite/margolite/test/wfmsim"
	"github.com/margolite/margolite/test/wfmsim/record"
)

// chartID is that of the n-th deployment of a Helm chart.
func chartID(n int) string { return fmt.Sprintf("c4a27000-0000-4000-8000-%012d", n) }

// publishChart publishes a deployment that this device cannot run. That it says
// so for a manifest version shows that it fetched and verified the document of
// that version, and takes no containers.
func (r *rig) publishChart(n, revision int) wfmsim.Published {
	r.t.Helper()
	d := r.Deployment(chartID(n), map[string]any{"REVISION": revision})
	body, err := d.Document()
	check(r.t, err)
	done, err := r.WFM.Publish(plant.Client, []byte(strings.Replace(string(body), "type: compose", "type: helm", 1)))
	check(r.t, err)
	return done
}

// publishedAndSynced publishes a chart and polls: the agent may be waiting for
// long.
func (r *rig) publishedAndSynced(n, revision int) wfmsim.Published {
	r.t.Helper()
	done := r.publishChart(n, revision)
	check(r.t, r.sync())
	return done
}

// refusesChart waits until the WFM heard that a chart cannot be run.
func (r *rig) refusesChart(done wfmsim.Published) {
	r.t.Helper()
	report, err := r.Await(r.t.Context(), done.DeploymentID, margo.Failed, done.Version)
	check(r.t, err)
	if e := report.Status.Error; e == nil || e.Code != "UNSUPPORTED_TYPE" {
		r.t.Errorf("deployment %s failed by %+v, want UNSUPPORTED_TYPE", done.DeploymentID, e)
	}
}

// sync polls the WFM now.
func (r *rig) sync() error { return r.Control().Sync(r.t.Context()) }

// synced polls until that works: the agent may just have been held back.
func (r *rig) synced() {
	r.t.Helper()
	r.eventually("the WFM can be polled", r.sync)
}

// quiet waits until everything was told to the WFM.
func (r *rig) quiet() {
	r.t.Helper()
	check(r.t, r.Quiet(r.t.Context()))
}

// asked is how many requests the WFM has had, for since.
func (r *rig) asked() int { return r.WFM.Requests().Count("") }

// since are the requests that came after the first n; those of some endpoints
// where they are named.
func (r *rig) since(n int, endpoints ...string) []record.Request {
	return slices.DeleteFunc(r.WFM.Requests().Requests(), func(q record.Request) bool {
		return q.Number <= int64(n) || len(endpoints) > 0 && !slices.Contains(endpoints, q.Endpoint)
	})
}

// nextRequest waits for the first request after the first n, to one of the
// endpoints if they are named, that is answered with a status; 0: any.
func (r *rig) nextRequest(n, status int, endpoints ...string) record.Request {
	r.t.Helper()
	var next record.Request
	r.eventually(fmt.Sprintf("a request to %v is answered %d", endpoints, status), func() error {
		all := r.since(n, endpoints...)
		i := slices.IndexFunc(all, func(q record.Request) bool { return q.Done && (status == 0 || q.Status == status) })
		if i < 0 {
			return fmt.Errorf("not among %+v", all)
		}
		next = all[i]
		return nil
	})
	return next
}

// untouched fails the test if services are not the very same as before.
func (r *rig) untouched(id string, before map[string]control.Service) {
	r.t.Helper()
	after := r.services(id)
	if len(after) != len(before) {
		r.t.Errorf("%d services run, want %d", len(after), len(before))
	}
	for name, was := range before {
		now := after[name]
		if !sameTask(was, now) || was.Started == nil || now.Started == nil || was.Started.Sub(*now.Started).Abs() > time.Second {
			r.t.Errorf("service %s was touched: it is %s with process %d since %v, was %s with %d since %v",
				name, now.Container, now.Pid, now.Started, was.Container, was.Pid, was.Started)
		}
	}
}

// logged gives the lines of the agent's log, from a length of it on, that hold
// all words.
func (r *rig) logged(from int, words ...string) []string {
	r.t.Helper()
	text, err := os.ReadFile(r.LogFile())
	check(r.t, err)
	var lines []string
	for line := range strings.Lines(string(text[min(from, len(text)):])) {
		if containsAll(line, words...) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// logLength is where the agent's log ends now.
func (r *rig) logLength() int {
	r.t.Helper()
	info, err := os.Stat(r.LogFile())
	check(r.t, err)
	return int(info.Size())
}
